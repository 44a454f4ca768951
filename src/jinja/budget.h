#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"

namespace inlay::jinja {

// A mistake while a template is read or rendered, before it is known where: the innermost expression that was at work
// adds its place.
struct Failure {
  std::string message;
  std::optional<std::size_t> at;  // byte of the template
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{fmt::format(format, std::forward<Args>(args)...), std::nullopt};
}

// What one rendering may take. Templates come with models and are trusted with nothing.
struct Limits {
  std::uint64_t steps = 30'000'000;  // a second or two; a conversation of a thousand turns takes some hundred thousand
  std::size_t bytes = std::size_t{256} << 20;  // of live values and output together
  int depth = 1000;                            // of expressions, statements and macro calls inside one another
};

// What is left of the limits.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits), steps_(limits.steps) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  void spend(std::uint64_t steps) {
    if (steps > steps_) fail("the template takes more than {} steps", limits_.steps);
    steps_ -= steps;
  }
  // Reading or copying text is work as well.
  void spend_on_bytes(std::size_t bytes) { spend(1 + bytes / 32); }

  void take(std::size_t bytes) {
    if (bytes > limits_.bytes - bytes_) fail("the template takes more than {} MiB of memory", limits_.bytes >> 20);
    bytes_ += bytes;
  }
  void give(std::size_t bytes) { bytes_ -= bytes; }

  void descend() {
    if (depth_ >= limits_.depth) fail("the template nests more than {} levels deep", limits_.depth);
    ++depth_;
  }
  void ascend() { --depth_; }

 private:
  Limits limits_;
  std::uint64_t steps_;
  std::size_t bytes_ = 0;
  int depth_ = 0;
};

// One level deeper, for as long as it lives.
class Level {
 public:
  explicit Level(Budget& budget) : budget_(budget) { budget_.descend(); }
  ~Level() { budget_.ascend(); }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Budget& budget_;
};

// Memory held out of a budget; what lives longer than a rendering (literals, conversations) has none.
class Charge {
 public:
  Charge() = default;
  Charge(Budget* budget, std::size_t bytes) : budget_(budget), bytes_(bytes) {
    if (budget_ != nullptr) budget_->take(bytes_);
  }
  Charge(Charge&& other) noexcept : budget_(std::exchange(other.budget_, nullptr)), bytes_(other.bytes_) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Charge() {
    if (budget_ != nullptr) budget_->give(bytes_);
  }

 private:
  Budget* budget_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace inlay::jinja
