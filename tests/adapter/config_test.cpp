#include "adapter/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/adapters.h"
#include "support/files.h"

namespace inlay::adapter {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::user_error_of;

AdapterConfig parsed(const nlohmann::json& json) {
  return parse_adapter_config(io::Json::parse(json.dump(), "a.json"));
}

nlohmann::json least() { return {{"peft_type", "LORA"}, {"target_modules", {"q_proj"}}}; }

TEST(AdapterConfig, ReadsWhatPeftWrites) {
  const AdapterConfig config = read_adapter_config(testing::adapter_fixture("llama_patterns"));
  EXPECT_EQ(config.rank, 2);
  EXPECT_EQ(config.alpha, 5);
  EXPECT_EQ(config.dropout, 0);
  EXPECT_THAT(config.target_modules.names, ElementsAre("k_proj", "o_proj", "q_proj", "v_proj"));
  EXPECT_THAT(config.exclude_modules.names, ElementsAre("layers.2.self_attn.v_proj"));
  EXPECT_THAT(config.layers, ElementsAre(0, 2));
  EXPECT_THAT(config.rank_pattern,
              ElementsAre(std::pair("layers\\.[12]\\.self_attn\\.o_proj", 3), std::pair("q_proj", 6)));
  EXPECT_THAT(config.alpha_pattern, ElementsAre(std::pair("layers.0.self_attn.k_proj", 7.0)));
  EXPECT_EQ(config.base_model, "tests/golden/models/llama_linear_sharded");
  EXPECT_TRUE(config.inference_mode);
  EXPECT_EQ(read_adapter_config(testing::adapter_fixture("qwen2_regex")).target_modules.pattern,
            ".*layers\\.1\\..*(q_proj|up_proj)");
  EXPECT_TRUE(read_adapter_config(testing::adapter_fixture("qwen2_dora")).dora);
  EXPECT_TRUE(read_adapter_config(testing::adapter_fixture("qwen3_rslora")).rslora);
  EXPECT_TRUE(read_adapter_config(testing::adapter_fixture("llama_tied_embeddings")).ties_embeddings);
}

// What is written says the same as PEFT did wherever both speak; what only PEFT says is a default of its own.
TEST(AdapterConfig, WritesWhatPeftWrites) {
  for (const auto& folder : testing::adapter_fixtures()) {
    SCOPED_TRACE(folder.filename());
    const AdapterConfig config = read_adapter_config(folder);
    const std::string text = to_json(config);
    const nlohmann::json ours = nlohmann::json::parse(text);
    const nlohmann::json theirs = nlohmann::json::parse(testing::read_text(folder / config_file));
    for (const auto& [key, value] : ours.items()) {
      ASSERT_TRUE(theirs.contains(key)) << key;
      if (key == "target_modules" && theirs[key].is_null()) {
        EXPECT_EQ(value, nlohmann::json::array());  // null would have PEFT pick some
      } else {
        EXPECT_EQ(value, theirs[key]) << key;
      }
    }
    for (const auto& [key, value] : theirs.items()) {
      const bool off = value.is_null() || value == false || ((value.is_array() || value.is_object()) && value.empty());
      const bool setting = key == "megatron_core" || key == "qalora_group_size" || key == "peft_version";
      EXPECT_TRUE(ours.contains(key) || off || setting) << key << " is " << value;
    }
    const AdapterConfig again = parse_adapter_config(io::Json::parse(text, "again"));
    EXPECT_EQ(again, config);
    EXPECT_EQ(to_json(again), text);
  }
}

TEST(AdapterConfig, TakesPeftsDefaults) {
  const AdapterConfig config = parsed(least());
  EXPECT_EQ(config.rank, 8);
  EXPECT_EQ(config.alpha, 8);
  EXPECT_FALSE(config.rslora);
  EXPECT_FALSE(config.inference_mode);
}

TEST(AdapterConfig, NumbersKeepTheirKind) {
  AdapterConfig config = parsed(least());
  config.alpha = 2.5;
  config.dropout = 0.05;
  EXPECT_THAT(to_json(config), AllOf(HasSubstr("\"lora_alpha\": 2.5"), HasSubstr("\"lora_dropout\": 0.05")));
  config.alpha = 16;
  EXPECT_THAT(to_json(config), HasSubstr("\"lora_alpha\": 16,"));
}

TEST(AdapterConfig, SaysAllThatIsWrongAtOnce) {
  nlohmann::json json = least();
  json.update({{"peft_type", "IA3"},
               {"r", 0},
               {"lora_dropout", 1},
               {"bias", "all"},
               {"use_qalora", true},
               {"lora_bias", true},
               {"task_type", "SEQ_CLS"},
               {"rank_pattern", {{"q_proj", -1}}},
               {"shiny", 3}});
  EXPECT_THAT(user_error_of([&] { parsed(json); }),
              AllOf(HasSubstr("9 problems"), HasSubstr("a.json: peft_type: 'IA3' is not supported; expected LORA"),
                    HasSubstr("a.json: r: expected a positive integer, got 0"), HasSubstr("lora_dropout"),
                    HasSubstr("bias: 'all' trains biases of the base model"), HasSubstr("use_qalora: QALoRA"),
                    HasSubstr("lora_bias"), HasSubstr("task_type"), HasSubstr("rank_pattern.q_proj"),
                    HasSubstr("shiny: is not known here")));
}

TEST(AdapterConfig, UnknownKeysThatAreOffAreFine) {
  nlohmann::json json = least();
  json.update(
      {{"shiny", nullptr}, {"bright", false}, {"new_config", nlohmann::json::object()}, {"use_bdlora", nullptr}});
  EXPECT_EQ(parsed(json), parsed(least()));
}

TEST(AdapterConfig, RefusesWhatChangesTheArithmetic) {
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, nlohmann::json>>{{"alora_invocation_tokens", {1, 2}},
                                                           {"megatron_config", {{"a", 1}}},
                                                           {"layer_replication", {{0, 2}}},
                                                           {"trainable_token_indices", {3}},
                                                           {"kasa_config", {{"beta", 1}}},
                                                           {"init_lora_weights", "pissa_niter_16"},
                                                           {"init_lora_weights", "loftq"}}) {
    nlohmann::json json = least();
    json[key] = value;
    EXPECT_THAT(user_error_of([&] { parsed(json); }), HasSubstr("a.json: " + key + ": ")) << key;
  }
  for (const nlohmann::json& init : {nlohmann::json(true), nlohmann::json(false), nlohmann::json("gaussian")}) {
    nlohmann::json json = least();
    json["init_lora_weights"] = init;
    EXPECT_EQ(parsed(json), parsed(least()));
  }
}

TEST(AdapterConfig, LayersGoWithAListOfModules) {
  nlohmann::json json = {{"peft_type", "LORA"}, {"target_modules", ".*q_proj"}, {"layers_to_transform", {0}}};
  EXPECT_THAT(user_error_of([&] { parsed(json); }), HasSubstr("layers_to_transform: is for a list of target_modules"));
  json = least();
  json["layers_to_transform"] = 1;
  EXPECT_THAT(parsed(json).layers, ElementsAre(1));
  json["layers_pattern"] = "h";
  EXPECT_THAT(user_error_of([&] { parsed(json); }), HasSubstr("layers_pattern: 'h' is not what"));
}

TEST(AdapterConfig, AFolderWithoutOneIsNoAdapter) {
  const testing::TempFolder folder;
  EXPECT_THAT(user_error_of([&] { read_adapter_config(folder.path()); }),
              HasSubstr("not an adapter: there is no adapter_config.json in it"));
  folder.write(config_file, "[]");
  EXPECT_THAT(user_error_of([&] { read_adapter_config(folder.path()); }), HasSubstr("expected an object"));
}

}  // namespace
}  // namespace inlay::adapter
