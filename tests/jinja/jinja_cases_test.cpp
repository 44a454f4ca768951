#include <gtest/gtest.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "jinja/chat_template.h"
#include "jinja/unicode.h"
#include "support/files.h"
#include "support/paths.h"

// Small templates against Jinja2 itself: tests/golden/make_jinja_cases.py.
namespace inlay::jinja {
namespace {

using inlay::testing::read_text;
using nlohmann::json;

std::tm fixed_time() {
  std::tm time{};
  time.tm_year = 126, time.tm_mon = 10, time.tm_mday = 15, time.tm_hour = 12;
  time.tm_wday = 0, time.tm_yday = 318;
  return time;
}

// Errors whose words users and templates rely on; of the others, only that there is one.
bool has_fixed_message(const std::string& kind) {
  return kind == "UndefinedError" || kind == "TemplateError" || kind == "SecurityError" ||
         kind == "TemplateRuntimeError";
}

class Cases {
 public:
  Cases() {
    const std::string text = read_text(testing::source_folder().string() + "/tests/golden/jinja_cases.json");
    cases = json::parse(text).at("cases");
    const Value document = from(io::read_value(text, "jinja_cases.json"));
    for (const auto& [name, value] : document.dict()->find("variables")->dict()->entries()) {
      if (name.string()->text == "messages") {
        messages_ = value;
      } else {
        options_.variables.emplace_back(name.string()->text, value);
      }
    }
    options_.now = fixed_time();
  }

  void check(const json& entry) const {
    const std::string text = entry[0];
    RenderedChat chat;
    std::optional<std::string> error;
    try {
      chat = ChatTemplate("case", text).render(messages_, options_);
    } catch (const TemplateError& failure) {
      error = failure.message();
    }
    if (!entry[1].is_null()) {
      EXPECT_EQ(error.value_or(""), "") << text;
      EXPECT_EQ(chat.text, entry[1].get<std::string>()) << text;
      if (entry.size() > 2) check_generation(chat, entry[2], text);
    } else if (has_fixed_message(entry[2])) {
      EXPECT_EQ(error.value_or("<none>"), entry[3].get<std::string>()) << text;
    } else {
      EXPECT_TRUE(error.has_value()) << text << "\n  gave: " << chat.text << "\n  expected: " << entry[3];
    }
  }

  json cases;

 private:
  static void check_generation(const RenderedChat& chat, const json& expected, const std::string& text) {
    ASSERT_EQ(chat.generation.size(), expected.size()) << text;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto [begin, end] = chat.generation[i];
      EXPECT_EQ(code_points(chat.text.substr(0, begin)), expected[i][0].get<std::size_t>()) << text;
      EXPECT_EQ(code_points(chat.text.substr(0, end)), expected[i][1].get<std::size_t>()) << text;
    }
  }

  Value messages_;
  RenderOptions options_;
};

const Cases& all() {
  static const Cases cases;
  return cases;
}

class JinjaTemplateCases : public ::testing::TestWithParam<std::string> {};

TEST_P(JinjaTemplateCases, AreRenderedAsJinjaDoes) {
  const json& group = all().cases.at(GetParam());
  ASSERT_GT(group.size(), 5u);
  for (const json& entry : group) all().check(entry);
}

std::vector<std::string> groups() {
  std::vector<std::string> names;
  for (const auto& [name, cases] : all().cases.items()) names.push_back(name);
  return names;
}

std::string group_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Groups, JinjaTemplateCases, ::testing::ValuesIn(groups()), group_name);

}  // namespace
}  // namespace inlay::jinja
