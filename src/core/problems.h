#pragma once

#include <algorithm>
#include <string>
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
