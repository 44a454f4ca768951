#pragma once

#include <cstdint>

// Fetching ahead inside a matrix kernel: memory that the next block will need is asked for a few lines at a time while
// this one is computed, because a burst of requests would stall on the few that a core can have under way.
namespace inlay::backend::cpu {

// The cache lines of a strided block, one after the other.
class LineStream {
 public:
  LineStream() = default;
  template <class T>
  LineStream(const T* from, std::int64_t ld, std::int64_t rows, std::int64_t cols)
      : row_(reinterpret_cast<const char*>(from)),
        at_(row_),
        stride_(ld * static_cast<std::int64_t>(sizeof(T))),
        row_bytes_(cols * static_cast<std::int64_t>(sizeof(T))),
        rows_(rows) {}

  // Lines to ask for in each of `steps` steps to be through at the end.
  std::int64_t rate(std::int64_t steps) const {
    const std::int64_t lines = rows_ * ((row_bytes_ + line - 1) / line);
    return (lines + steps - 1) / steps;
  }

  // level 3: into the nearest cache, 2: into the second.
  template <bool write, int level>
  void fetch(std::int64_t count) {
    for (; count > 0 && rows_ > 0; --count) {
      __builtin_prefetch(at_, write ? 1 : 0, level);
      at_ += line;
      if (at_ - row_ >= row_bytes_) {
        row_ += stride_;
        at_ = row_;
        --rows_;
      }
    }
  }

 private:
  static constexpr std::int64_t line = 64;
  const char* row_ = nullptr;
  const char* at_ = nullptr;
  std::int64_t stride_ = 0, row_bytes_ = 0, rows_ = 0;
};

// What a kernel asks for with every step of its sum.
struct Ahead {
  LineStream own;     // what this thread packs next
  LineStream shared;  // the next panel of the shared operand
  LineStream c;       // the block of C that these sums go to
  std::int64_t own_rate = 0, shared_rate = 0, c_rate = 0;

  void step() {
    own.fetch<false, 2>(own_rate);
    shared.fetch<false, 2>(shared_rate);
    c.fetch<true, 3>(c_rate);
  }
};

}  // namespace inlay::backend::cpu
