#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "core/problems.h"
#include "options/given_keys.h"

namespace inlay::options::option {

// What is wrong with keys that are each right by themselves, told with the lines that they stand in.
class KeyProblems {
 public:
  // wrong: keys whose own value is, of which it was said already.
  KeyProblems(std::string source, const GivenKeys& given, std::set<std::string> wrong, Problems& found)
      : source_(std::move(source)),
        given_(given.places()),
        taken_back_(given.taken_back),
        wrong_(std::move(wrong)),
        found_(found) {}

  bool is_given(const std::string& key) const { return given_.contains(key); }
  // Whether the command line takes back what the file gives: what the file has for it need not go as well.
  bool is_taken_back(const std::string& key) const { return taken_back_.contains(key); }
  // Keys that are not given, but for which others stand.
  void stand_in(std::map<std::string, Place> others) { others_ = std::move(others); }
  // Then nothing can be said of what it leaves open.
  bool is_wrong(const std::string& key) const { return wrong_.contains(key); }

  // A key that is not given, such as one that is missing, is one of the whole file; a section's is that of its first
  // key.
  void add(const std::string& key, std::string_view what) {
    auto at = given_.find(key);
    if (at == given_.end()) at = given_.lower_bound(key + ".");
    const bool found = at != given_.end() && (at->first == key || at->first.starts_with(key + "."));
    if (const auto other = others_.find(key); !found && other != others_.end()) {
      found_.add("{}: {}: {}", other->second.where(), other->second.key, what);
      return;
    }
    found_.add("{}: {}", found ? at->second.where() : source_, what);
  }
  void add_if(bool wrong, const std::string& key, std::string_view what) {
    if (wrong) add(key, what);
  }
  bool none() const { return found_.empty(); }
  template <class Action>
  void gather(Action&& action) {
    found_.gather(std::forward<Action>(action));
  }

 private:
  std::string source_;
  std::map<std::string, Place> given_, others_;
  std::set<std::string> taken_back_, wrong_;
  Problems& found_;
};

}  // namespace inlay::options::option
