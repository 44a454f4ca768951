#include "options/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include <nlohmann/json.hpp>

#include "core/text.h"
#include "options/train_options.h"
#include "support/files.h"

namespace inlay::options {
namespace {

using inlay::testing::user_error_of;
using ::testing::HasSubstr;

// The schema of one key, down through the nested maps.
nlohmann::json schema_of(const std::string& key) {
  nlohmann::json at = nlohmann::json::parse(options_schema());
  for (const std::string& name : split(key, '.')) at = at.at("properties").at(name);
  return at;
}

TEST(OptionsSchema, KnowsEveryKeyWithTypeMeaningAndDefault) {
  for (const OptionKey& key : option_keys()) {
    const nlohmann::json schema = schema_of(key.name);
    EXPECT_TRUE(schema.contains("type") || schema.contains("enum") || schema.contains("anyOf")) << key.name;
    EXPECT_EQ(schema.at("description"), key.meaning);
    EXPECT_EQ(schema.contains("default"), !key.required) << key.name;
  }
  EXPECT_EQ(schema_of("sequence_len").at("default"), 2048);
  EXPECT_EQ(schema_of("sequence_len").at("minimum"), 2);
  EXPECT_EQ(schema_of("adam_epsilon").at("default"), 1e-8);
  EXPECT_EQ(schema_of("sample_packing").at("default"), true);
  EXPECT_EQ(schema_of("device").at("enum"), (nlohmann::json{"auto", "cpu", "cuda"}));
  EXPECT_EQ(schema_of("memory.disk").at("default"), "off");
  EXPECT_EQ(schema_of("osft.targets").at("default"), nlohmann::json::array({"auto"}));
  EXPECT_EQ(schema_of("osft.calibration.samples").at("minimum"), 1);
  EXPECT_EQ(schema_of("learning_rate").at("exclusiveMinimum"), 0);
}

TEST(OptionsSchema, RefusesUnknownKeysInEveryMap) {
  const auto schema = nlohmann::json::parse(options_schema());
  EXPECT_EQ(schema.at("$schema"), "https://json-schema.org/draft/2020-12/schema");
  EXPECT_EQ(schema.at("additionalProperties"), false);
  for (const char* map : {"memory", "osft", "osft.calibration"}) {
    EXPECT_EQ(schema_of(map).at("additionalProperties"), false) << map;
  }
}

TEST(OptionsSchema, RequiresWhatTheProgramRequires) {
  const std::string given =
      "base_model: m\noutput_dir: o\ndatasets: [d]\nlearning_rate: 1\nosft:\n"
      "  unfreeze_rank_ratio: 0.5\n  basis: weights\n";
  parse_options(given, "run.yaml", {});
  for (const OptionKey& key : option_keys()) {
    const std::string leaf = split(key.name, '.').back();
    const std::string without = std::regex_replace(given, std::regex("(^|\n) *" + leaf + ":[^\n]*"), "$1");
    const std::string error = user_error_of([&] { parse_options(without, "run.yaml", {}); });
    EXPECT_EQ(error.find(key.name + " is required") != error.npos, key.required) << key.name << ": " << error;
  }
}

// Fills in what has no value.
std::string filled(std::string text) {
  const std::pair<const char*, const char*> values[] = {{"base_model", "m"},
                                                        {"output_dir", "o"},
                                                        {"datasets", "[{path: d.jsonl}]"},
                                                        {"learning_rate", "1e-4"},
                                                        {"unfreeze_rank_ratio", "0.5"}};
  for (const auto& [key, value] : values) {
    text = std::regex_replace(text, std::regex("(^|\n)(#? *)(" + std::string(key) + "):\n"),
                              "$1$2$3: " + std::string(value) + "\n");
  }
  return text;
}

TEST(OptionsTemplate, LoadsOnceTheRequiredKeysAreFilledIn) {
  const std::string yaml = options_template();
  EXPECT_THAT(user_error_of([&] { parse_options(yaml, "run.yaml", {}); }), HasSubstr("base_model is required"));
  const TrainOptions options = parse_options(filled(yaml), "run.yaml", {});
  EXPECT_EQ(options.base_model, "m");
  EXPECT_FALSE(options.osft.enabled);
  for (const std::string& line : split(yaml, '\n')) EXPECT_LE(line.size(), 120u) << line;
}

TEST(OptionsTemplate, WhatIsCommentedOutIsTheDefault) {
  // A key that is commented out stands right behind its #, or behind the indentation of its map; prose has one space.
  const std::string bare =
      std::regex_replace(filled(options_template()), std::regex("(^|\n)#((?:  )*[a-z][a-z0-9_]*:)"), "$1$2");
  for (const OptionKey& key : option_keys()) {
    EXPECT_TRUE(std::regex_search(bare, std::regex("\n *" + split(key.name, '.').back() + ":"))) << key.name;
  }
  const std::string least =
      "base_model: m\noutput_dir: o\ndatasets: [{path: d.jsonl}]\nlearning_rate: 1e-4\n"
      "osft: {unfreeze_rank_ratio: 0.5}\n";
  EXPECT_EQ(to_yaml(parse_options(bare, "bare", {})), to_yaml(parse_options(least, "least", {})));
}

}  // namespace
}  // namespace inlay::options
