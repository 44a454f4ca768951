#include "backend/cpu/threads.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <string>

#include "core/environment.h"
#include "core/error.h"
#include "core/processors.h"

namespace inlay::backend::cpu {

namespace {

int asked_for() {
  const std::optional<std::string> text = environment("OMP_NUM_THREADS");
  if (!text) return granted_processors();
  int count = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), count);
  // OpenMP's own form is a list, one number for each level of nesting; we have one level.
  if (error != std::errc{} || count < 1 || (*end != '\0' && *end != ',')) {
    user_error("OMP_NUM_THREADS is \"{}\" in the environment, expected a number of threads", *text);
  }
  return std::min(count, granted_processors());
}

std::atomic<int>& chosen() {
  static std::atomic<int> count = asked_for();
  return count;
}

}  // namespace

int threads() { return chosen().load(std::memory_order_relaxed); }

void limit_threads(int most) { chosen() = std::max(1, std::min({threads(), granted_processors(), most})); }

void set_threads(int count) { chosen() = count; }

}  // namespace inlay::backend::cpu
