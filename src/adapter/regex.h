#pragma once

#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace inlay::adapter {

// A regular expression as Python writes them, against whole names.
class Regex {
 public:
  // place stands before messages: "adapter_config.json: target_modules".
  Regex(const std::string& pattern, std::string place);

  bool matches(std::string_view name) const;

 private:
  std::shared_ptr<const pcre2_real_code_8> code_;
  std::string place_;
};

}  // namespace inlay::adapter
