#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "options/minimal.h"
#include "options/train_options.h"
#include "support/files.h"

namespace inlay::options {
namespace {

using inlay::testing::user_error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string lora = minimal + "adapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\n";

TEST(OptionsAdapter, AreReadAsAxolotlHasThem) {
  const auto a =
      parsed_whole(minimal +
                   "adapter: qlora\nload_in_4bit: true\nlora_r: 32\nlora_alpha: 16\nlora_dropout: 0.05\n"
                   "lora_target_modules:\n  - q_proj\n  - v_proj\nlora_modules_to_save: [embed_tokens, lm_head]\n"
                   "peft_use_rslora: true\npeft_layers_to_transform: [0, 3]\nlora_init: free\nlora_free_ratio: 0.3\n"
                   "osft: {cache: off, calibration: {samples: 4}}\n")
          .adapter;
  EXPECT_EQ(a.kind, adapter::AdapterKind::qlora);
  EXPECT_TRUE(a.load_in_4bit);
  EXPECT_EQ(a.rank, 32);
  EXPECT_EQ(a.alpha, 16);
  EXPECT_EQ(a.dropout, 0.05);
  EXPECT_THAT(a.target_modules.names, ElementsAre("q_proj", "v_proj"));
  EXPECT_THAT(a.modules_to_save, ElementsAre("embed_tokens", "lm_head"));
  EXPECT_TRUE(a.rslora);
  EXPECT_THAT(a.layers, ElementsAre(0, 3));
  EXPECT_EQ(a.init, adapter::LoraInit::free);
  EXPECT_EQ(a.free_ratio, 0.3);
  EXPECT_FALSE(parsed_whole(minimal).adapter.enabled());
}

TEST(OptionsAdapter, AFileWithoutAnAdapterMayLeaveTheKeysEmpty) {
  const auto a = parsed_whole(minimal +
                              "adapter:\nlora_model_dir:\nlora_r:\nlora_alpha:\nlora_dropout:\nlora_target_linear:\n"
                              "lora_target_modules:\nload_in_8bit: false\nload_in_4bit: false\n")
                     .adapter;
  EXPECT_FALSE(a.enabled());
  const auto back = parse_options(lora, "run.yaml",
                                  {{"adapter", ""}, {"lora_r", ""}, {"lora_alpha", ""}, {"lora_target_linear", ""}});
  EXPECT_FALSE(back.adapter.enabled());
  EXPECT_FALSE(back.adapter.rank);
}

TEST(OptionsAdapter, TargetsAreNamesOrAPattern) {
  const auto targets = [](const std::string& value) {
    return parsed_whole(minimal + "adapter: lora\nlora_r: 8\nlora_alpha: 8\nlora_target_modules: " + value + "\n")
        .adapter.target_modules;
  };
  EXPECT_THAT(targets("q_proj").names, ElementsAre("q_proj"));
  EXPECT_THAT(targets("[self_attn.q_proj, v_proj]").names, ElementsAre("self_attn.q_proj", "v_proj"));
  EXPECT_EQ(targets("'.*layers\\.[\\d]+\\.self_attn\\.[qv]_proj'").pattern,
            ".*layers\\.[\\d]+\\.self_attn\\.[qv]_proj");
  EXPECT_TRUE(targets("all-linear").all_linear());
  EXPECT_TRUE(targets("[all-linear]").all_linear());
  EXPECT_THAT(error_of_whole(lora + "lora_target_modules: [q_proj, q_proj]\n"),
              HasSubstr("line 9: lora_target_modules: 'q_proj' is given twice"));
  EXPECT_THAT(error_of_whole(lora + "lora_target_modules: {q_proj: 3}\n"), HasSubstr("got a map"));
}

TEST(OptionsAdapter, AreWrittenAsTheyAreRead) {
  for (const std::string& more :
       {std::string("lora_target_modules: [lm_head]\nlora_dropout: 0.1\n"),
        std::string("lora_exclude_modules: '.*[01]\\..*'\n"),
        std::string("load_in_8bit: true\npeft_use_dora: true\nlora_modules_to_save: lm_head\nlora_init: pissa\n"),
        std::string("lora_init: free\nosft.calibration.data: [sample, a.txt]\nosft.cache: 'off'\n"),
        std::string("lora_target_parameters: [experts.down_proj, router.weight]\npeft_layers_to_transform: [1]\n")}) {
    const std::string yaml = to_yaml(parsed_whole(lora + more));
    EXPECT_EQ(to_yaml(parsed_whole(yaml)), yaml);
  }
  const std::string from = to_yaml(parsed_whole(minimal + "adapter: lora\nlora_model_dir: a\n"));
  EXPECT_EQ(to_yaml(parsed_whole(from)), from);
  EXPECT_THAT(to_yaml(parsed_whole(minimal)), AllOf(Not(HasSubstr("lora_")), Not(HasSubstr("load_in_"))));
}

TEST(OptionsAdapter, KeysWithoutAnAdapterAreAMistake) {
  EXPECT_THAT(
      error_of_whole(minimal + "lora_r: 8\nlora_alpha: 16\n"),
      HasSubstr(
          "run.yaml, line 5: lora_r, lora_alpha are for adapters, but adapter is not given; add adapter: lora, or "
          "leave them out"));
  EXPECT_THAT(error_of_whole(minimal + "peft_use_dora: true\n"), HasSubstr("peft_use_dora is for adapters"));
  EXPECT_THAT(error_of_whole(minimal + "load_in_4bit: true\n"),
              HasSubstr("load_in_4bit without an adapter: quantized weights cannot train; add adapter: qlora"));
  EXPECT_THAT(error_of_whole(minimal + "load_in_8bit: true\n"), HasSubstr("add adapter: lora"));
  EXPECT_THAT(error_of_whole(minimal + "lora_rr: 8\n"), HasSubstr("lora_rr is not a known key; did you mean lora_r?"));
}

TEST(OptionsAdapter, SomethingMustBeTrained) {
  EXPECT_THAT(error_of_whole(minimal + "adapter: lora\n"),
              AllOf(HasSubstr("3 problems"), HasSubstr("lora_r is required with an adapter"),
                    HasSubstr("lora_alpha is required with an adapter"), HasSubstr("needs something to adapt")));
  EXPECT_EQ(error_of_whole(minimal + "adapter: lora\nlora_model_dir: a\n"), "<no error>");
  EXPECT_THAT(error_of_whole(minimal + "adapter: lora\nlora_r: 0\n"),
              HasSubstr("lora_r: expected auto or a number of at least 1, got '0'"));
  EXPECT_THAT(error_of_whole(minimal + "adapter: lora\nlora_r: 1.5\n"), HasSubstr("got '1.5'"));
  EXPECT_THAT(error_of_whole(lora + "lora_dropout: 1\n"),
              HasSubstr("lora_dropout: expected a number from 0 to 0.999999"));
  EXPECT_THAT(error_of_whole(minimal + "adapter: lora\nlora_r: 4\nlora_alpha: 0\nlora_target_linear: true\n"),
              HasSubstr("lora_alpha: expected a number above 0"));
  EXPECT_THAT(error_of_whole(minimal + "adapter: prefix\n"),
              HasSubstr("expected one of none, lora, qlora, got 'prefix'"));
}

// What is said of a key's value is not said again of the key as missing.
TEST(OptionsAdapter, AWrongValueIsOneProblem) {
  const auto problems = [](const std::string& yaml) {
    const std::string text = error_of_whole(minimal + yaml);
    return std::ranges::count(text, '\n') == 0 ? text : "several: " + text;
  };
  const std::string targets = "lora_target_linear: true\n";
  for (const char* value : {"abc", "0", "1.5"}) {
    EXPECT_THAT(problems("adapter: lora\nlora_alpha: 16\nlora_r: " + std::string(value) + "\n" + targets),
                ::testing::StartsWith("run.yaml, line 7: lora_r: expected"));
  }
  EXPECT_THAT(problems("adapter: lora\nlora_r: 8\nlora_alpha: abc\n" + targets),
              ::testing::StartsWith("run.yaml, line 7: lora_alpha: expected"));
  for (const char* key : {"lora_target_linear", "lora_target_modules", "lora_target_parameters"}) {
    EXPECT_THAT(problems("adapter: lora\nlora_r: 8\nlora_alpha: 16\n" + std::string(key) + ": {a: b}\n"),
                ::testing::StartsWith("run.yaml, line 8: " + std::string(key) + ": expected"));
  }
  EXPECT_THAT(problems("adapter: lora\nlora_model_dir: [a]\n"),
              ::testing::StartsWith("run.yaml, line 6: lora_model_dir: expected"));
  EXPECT_THAT(problems("adapter: prefix\nlora_r: 8\nlora_alpha: 16\nload_in_8bit: true\n" + targets),
              ::testing::StartsWith("run.yaml, line 5: adapter: expected"));
  EXPECT_THAT(problems("adapter: qlora\nlora_r: 8\nlora_alpha: 16\nload_in_4bit: 4\n" + targets),
              ::testing::StartsWith("run.yaml, line 8: load_in_4bit: expected"));
}

TEST(OptionsAdapter, QloraIsInFourBits) {
  const std::string qlora = minimal + "adapter: qlora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\n";
  EXPECT_THAT(error_of_whole(qlora), HasSubstr("adapter: qlora needs load_in_4bit: true"));
  EXPECT_THAT(error_of_whole(qlora + "load_in_8bit: true\n"), HasSubstr("adapter: qlora needs load_in_4bit: true"));
  EXPECT_THAT(error_of_whole(qlora + "load_in_8bit: true\nload_in_4bit: true\n"),
              HasSubstr("load_in_4bit and load_in_8bit are both given"));
  EXPECT_EQ(error_of_whole(qlora + "load_in_4bit: true\n"), "<no error>");
  EXPECT_EQ(error_of_whole(lora + "load_in_8bit: true\n"), "<no error>");
  EXPECT_EQ(error_of_whole(lora + "load_in_fp8: true\n"), "<no error>");
  EXPECT_THAT(error_of_whole(lora + "load_in_fp8: true\nload_in_8bit: true\n"), HasSubstr("one of them is enough"));
}

TEST(OptionsAdapter, WhatContradictsAnAdapterIsRefused) {
  EXPECT_THAT(error_of_whole(lora + "osft: {unfreeze_rank_ratio: 0.5}\n"),
              HasSubstr("adapter and osft are both given"));
  EXPECT_THAT(error_of_whole(lora + "osft.cache: 'off'\n"), HasSubstr("adapter and osft are both given"));
  EXPECT_THAT(error_of_whole(lora + "lora_init: free\nosft: {unfreeze_rank_ratio: 0.5}\n"),
              HasSubstr("osft.unfreeze_rank_ratio does not go with an adapter: with lora_init: free, osft has only "
                        "calibration, basis_on and cache; the share is lora_free_ratio"));
  EXPECT_THAT(error_of_whole(lora + "lora_init: free\nosft: {basis: weights}\n"),
              HasSubstr("osft.basis does not go with an adapter"));
  EXPECT_THAT(error_of_whole(lora + "lora_init: free\npeft_use_dora: true\n"),
              HasSubstr("peft_use_dora does not go with lora_init: free"));
  EXPECT_THAT(error_of_whole(lora + "lora_free_ratio: 0.5\n"), HasSubstr("lora_free_ratio is for lora_init: free"));
  EXPECT_THAT(error_of_whole(lora + "freeze: ['*']\n"),
              HasSubstr("freeze: with an adapter all of the base model is frozen"));
  EXPECT_THAT(error_of_whole(lora + "lora_model_dir: a\nlora_init: free\n"),
              HasSubstr("lora_init is for a new adapter"));
  EXPECT_THAT(error_of_whole(lora + "lora_target_parameters: [down_proj]\nlora_dropout: 0.1\npeft_use_dora: true\n"),
              AllOf(HasSubstr("lora_dropout must be 0"), HasSubstr("peft_use_dora does not go with")));
  EXPECT_THAT(error_of_whole(lora + "lora_target_modules: '.*q_proj'\npeft_layers_to_transform: [-1]\n"),
              AllOf(HasSubstr("a pattern can name all layers itself"),
                    HasSubstr("a pattern can name the layers itself"), HasSubstr("layers are counted from 0, got -1")));
}

}  // namespace
}  // namespace inlay::options
