#include "data/formats/roles.h"

#include <algorithm>
#include <vector>

#include "core/text.h"

namespace inlay::data {
namespace {

// Which conversations have beside those that a template or the options name; most templates write any role.
constexpr std::string_view usual[] = {"assistant",   "developer", "environment", "function", "ipython",
                                      "observation", "system",    "tool",        "user"};

std::map<std::string, std::string> names_of(const FormatOptions& options) {
  std::map<std::string, std::string> names;
  if (options.roles.empty()) {
    names = {{"human", "user"},    {"prompter", "user"},     {"gpt", "assistant"},
             {"bot", "assistant"}, {"chatgpt", "assistant"}, {"model", "assistant"}};
  }
  for (const auto& [role, sources] : options.roles) {
    for (const std::string& source : sources) names[source] = role;
  }
  return names;
}

std::string in_small_letters(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

}  // namespace

Roles::Roles(const FormatOptions& options, std::shared_ptr<const ChatTemplate> chat)
    : names_(names_of(options)), known_(std::begin(usual), std::end(usual)), chat_(std::move(chat)) {
  for (const auto& [role, sources] : options.roles) known_.insert(role);
  known_.insert(options.roles_to_train.begin(), options.roles_to_train.end());
}

const std::string& Roles::of(const std::string& name) const {
  const auto found = names_.find(name);
  return found != names_.end() ? found->second : name;
}

bool Roles::knows(const std::string& role) const {
  return known_.contains(role) || (chat_ != nullptr && chat_->names(role));
}

std::string Roles::described(const Row& row, const FormatOptions& options) const {
  const auto mapped = options.message_property_mappings.find("role");
  std::vector<std::string> names;
  std::string misspelled;
  for (const io::Value::Member& member : *row.expect_object().value().map()) {
    if (member.value.list() == nullptr) continue;
    for (std::size_t i = 0; i < member.value.list()->size(); ++i) {
      const io::Value& message = (*member.value.list())[i];
      const io::Value* role = message.find(mapped != options.message_property_mappings.end() ? mapped->second : "role");
      if (role == nullptr) role = message.find("from");
      if (role == nullptr || role->text() == nullptr) continue;
      const std::string& name = *role->text();
      if (misspelled.empty() && !knows(of(name))) misspelled = "; " + unknown(i + 1, name, "not learned");
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  if (names.empty()) return {};
  const std::string last = names.back();
  names.pop_back();
  return fmt::format("messages of {}{}{}, and roles_to_train is [{}]{}", join(names, ", "),
                     names.empty() ? "" : " and ", last, join(options.roles_to_train, ", "), misspelled);
}

std::string Roles::unknown(std::size_t message, const std::string& role, std::string_view reason) const {
  std::set<std::string> names = known_;
  for (const auto& [name, meant] : names_) names.insert(name);
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  const std::string guess = nearest(in_small_letters(role), candidates);
  return fmt::format(
      "message {}: '{}' is not a known role, and {}; {} are {}, and those that the chat template names; the dataset's "
      "roles name others, as in roles: {{{}: [{}]}}",
      message, role, reason, guess.empty() ? "known" : fmt::format("did you mean {}? Known", guess),
      join(std::vector<std::string>(names.begin(), names.end()), ", "), guess.empty() ? role : of(guess), role);
}

}  // namespace inlay::data
