#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/text.h"

namespace inlay::adapter {

// What is wrong with a file, gathered so that a user hears of all of it at once.
class Problems {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    found_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  // Does something; a UserError from it is one more problem.
  template <class Action>
  void gather(Action&& action) {
    try {
      action();
    } catch (const UserError& error) {
      found_.emplace_back(error.what());
    }
  }
  bool empty() const { return found_.empty(); }
  void raise() const {
    if (found_.empty()) return;
    if (found_.size() == 1) throw UserError(found_.front());
    user_error("{} problems:\n  {}", found_.size(), join(found_, "\n  "));
  }

 private:
  std::vector<std::string> found_;
};

}  // namespace inlay::adapter
