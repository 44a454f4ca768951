#include <algorithm>

#include "cli/commands.h"
#include "core/error.h"
#include "core/text.h"

namespace inlay::cli {

std::vector<std::pair<std::string, std::string>> parse_overrides(const CLI::App& command) {
  const std::vector<std::string> rest = command.remaining();
  std::vector<std::pair<std::string, std::string>> overrides;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    std::string key = rest[i];
    if (!key.starts_with("--") || key.size() == 2) {
      const CLI::Option* const resume = command.get_option_no_throw("--resume");
      const bool resumes = resume != nullptr && resume->count() > 0;
      user_error("unexpected argument '{}'; expected --key value{}", key,
                 resumes ? "; --resume takes no value, and continues from the latest checkpoint" : "");
    }
    key.erase(0, 2);
    std::string value;
    if (const auto equals = key.find('='); equals != std::string::npos) {
      value = key.substr(equals + 1);
      key.resize(equals);
    } else if (i + 1 < rest.size()) {
      value = rest[++i];
    } else {
      // What stands alone is rather a switch.
      std::vector<std::string_view> switches;
      for (const CLI::Option* option : command.get_options()) {
        for (const std::string& name : option->get_lnames()) switches.push_back(name);
      }
      const std::string meant = nearest(key, switches);
      user_error("--{} needs a value{}", key, meant.empty() ? "" : fmt::format("; did you mean --{}?", meant));
    }
    std::replace(key.begin(), key.end(), '-', '_');
    overrides.emplace_back(std::move(key), std::move(value));
  }
  return overrides;
}

}  // namespace inlay::cli
