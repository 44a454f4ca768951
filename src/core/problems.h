#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/text.h"

namespace inlay {

class SeveralProblems : public UserError {
 public:
  explicit SeveralProblems(std::vector<std::string> found)
      : UserError(fmt::format("{} problems:\n  {}", found.size(), join(found, "\n  "))), each(std::move(found)) {}
  std::vector<std::string> each;
};

// What is wrong with a file, gathered so that a user hears of all of it at once.
class Problems {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    note(fmt::format(format, std::forward<Args>(args)...));
  }
  // Does something; a UserError from it is one more problem.
  template <class Action>
  void gather(Action&& action) {
    try {
      action();
    } catch (const SeveralProblems& error) {
      for (const std::string& each : error.each) note(each);
    } catch (const UserError& error) {
      note(error.what());
    }
  }
  // As they stand in the file, "run.yaml, line 4: ..."; those without a line of it come last.
  void sort_by_line(std::string_view source) {
    const auto line_of = [before = std::string(source) + ", line "](std::string_view problem) {
      std::size_t line = std::numeric_limits<std::size_t>::max();
      if (!problem.starts_with(before)) return line;
      problem.remove_prefix(before.size());
      std::from_chars(problem.data(), problem.data() + problem.size(), line);
      return line;
    };
    std::ranges::stable_sort(found_, {}, line_of);
  }
  bool empty() const { return found_.empty(); }
  void raise() const {
    if (found_.empty()) return;
    if (found_.size() == 1) throw UserError(found_.front());
    throw SeveralProblems(found_);
  }

 private:
  // A file's part may be read more than once; what is wrong with it is said once.
  void note(std::string problem) {
    if (std::find(found_.begin(), found_.end(), problem) == found_.end()) found_.push_back(std::move(problem));
  }

  std::vector<std::string> found_;
};

}  // namespace inlay
