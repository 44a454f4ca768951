#include <algorithm>

#include "cli/commands.h"
#include "core/error.h"

namespace inlay::cli {

std::vector<std::pair<std::string, std::string>> parse_overrides(const std::vector<std::string>& rest) {
  std::vector<std::pair<std::string, std::string>> overrides;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    std::string key = rest[i];
    if (!key.starts_with("--") || key.size() == 2) user_error("unexpected argument '{}'; expected --key value", key);
    key.erase(0, 2);
    std::string value;
    if (const auto equals = key.find('='); equals != std::string::npos) {
      value = key.substr(equals + 1);
      key.resize(equals);
    } else if (i + 1 < rest.size()) {
      value = rest[++i];
    } else {
      user_error("--{} needs a value", key);
    }
    std::replace(key.begin(), key.end(), '-', '_');
    overrides.emplace_back(std::move(key), std::move(value));
  }
  return overrides;
}

}  // namespace inlay::cli
