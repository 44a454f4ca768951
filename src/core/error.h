#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#if defined(__CUDACC__) && !defined(FMT_USE_CONSTEXPR)
#define FMT_USE_CONSTEXPR 1  // fmt 9 half turns constexpr off under nvcc, and then does not compile as C++20
#endif
#include <fmt/format.h>
#include <inlay/types.h>

namespace inlay {

// A defect of ours: a broken invariant, a library call that must not fail. Ends the process with exit code 1.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

template <class... Args>
[[noreturn]] void user_error(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line, std::string_view message);

}  // namespace inlay

// Checks an invariant of ours, in every build. The message is a fmt format string with its arguments.
#define INLAY_ASSERT(condition, ...)                                                                       \
  do {                                                                                                     \
    if (!(condition)) ::inlay::assertion_failed(#condition, __FILE__, __LINE__, fmt::format(__VA_ARGS__)); \
  } while (false)
