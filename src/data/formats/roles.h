#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "data/formats/format.h"

namespace inlay::data {

// Who speaks in conversations: the data's names, what templates call them, and which of these are meant for sure. A
// role that nobody knows is one of the data's own, or a misspelled one whose turns would not be learned.
class Roles {
 public:
  // Without a template the others' names are known alone.
  explicit Roles(const FormatOptions& options, std::shared_ptr<const ChatTemplate> chat = nullptr);

  // What templates call it: human is user.
  const std::string& of(const std::string& name) const;
  // Whether templates usually have it, this one names it, or the options do.
  bool knows(const std::string& role) const;
  // Who speaks in a row, each once, under the data's names. `, and roles_to_train is [assistant]` and what may be
  // misspelled follow: for rows of which nothing is learned. Empty where nobody speaks.
  std::string described(const Row& row, const FormatOptions& options) const;
  // `message 2: 'assistnt' is no known role, and REASON; did you mean ...`
  std::string unknown(std::size_t message, const std::string& role, std::string_view reason) const;

 private:
  std::map<std::string, std::string> names_;  // from the data's to the template's
  std::set<std::string> known_;
  std::shared_ptr<const ChatTemplate> chat_;
};

}  // namespace inlay::data
