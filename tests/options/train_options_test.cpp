#include "options/train_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "options/minimal.h"
#include "support/files.h"
#include "train/schedule.h"

namespace inlay::options {
namespace {

using inlay::testing::user_error_of;
using ::testing::Eq;
using ::testing::HasSubstr;

TEST(OptionsTrain, ReadsAndOverrides) {
  const auto o =
      parse_options(minimal + "micro_batch_size: 4\nsample_packing: false\n", "run.yaml", {{"micro_batch_size", "8"}});
  EXPECT_EQ(o.micro_batch_size, 8);
  EXPECT_FALSE(o.sample_packing);
  EXPECT_EQ(o.datasets, std::vector<data::DatasetOptions>{{.path = "d.jsonl"}});
}

TEST(OptionsTrain, TheResolvedFileReadsBack) {
  const auto o = parse_options(minimal + "weight_decay: 0.1\nlr_scheduler: linear\n", "run.yaml", {});
  const std::string yaml = to_yaml(o);
  EXPECT_EQ(to_yaml(parse_options(yaml, "resolved", {})), yaml);
}

TEST(OptionsTrain, ZeroIsAValueNotAnAbsence) {
  EXPECT_EQ(parse_options(minimal + "max_grad_norm: 0.0\n", "run.yaml", {}).max_grad_norm, 0.0);
}

TEST(OptionsTrain, MistakesNameFileLineAndKey) {
  EXPECT_THAT(error_of_whole(minimal + "learning_rat: 3\n"),
              HasSubstr("run.yaml, line 5: learning_rat is not a known key; did you mean learning_rate?"));
  EXPECT_THAT(error_of_whole(minimal + "zzz: 3\n"), HasSubstr("zzz is not a known key"));
  EXPECT_THAT(error_of_whole(minimal + "micro_batch_size: two\n"),
              HasSubstr("line 5: micro_batch_size: expected an integer of at least 1, got 'two'"));
  EXPECT_THAT(error_of_whole(minimal + "micro_batch_size: 1.5\n"), HasSubstr("expected an integer"));
  EXPECT_THAT(error_of_whole(minimal + "micro_batch_size: [1]\n"), HasSubstr("got a list"));
  EXPECT_THAT(error_of_whole(minimal + "sample_packing: maybe\n"), HasSubstr("true or false"));
  EXPECT_THAT(error_of_whole(minimal + "device: tpu\n"), HasSubstr("auto, cpu, cuda"));
  EXPECT_THAT(error_of_whole(minimal + "seed: 1\nseed: 2\n"), HasSubstr("given twice"));
  EXPECT_THAT(error_of_whole(minimal + "warmup_steps: 3\nwarmup_ratio: 0.1\n"), HasSubstr("one of them is enough"));
  EXPECT_THAT(error_of_whole(minimal + "activation_policy: everything\n"), HasSubstr("everything"));
  EXPECT_THAT(error_of_whole(minimal + "eval_steps: 3\n"), HasSubstr("test_datasets"));
  EXPECT_THAT(error_of_whole(minimal + "a: [\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(error_of_whole("learning_rate: 1\n"), HasSubstr("base_model is required"));
  EXPECT_THAT(error_of_whole(minimal, {{"learning_rate", ".nan"}}), HasSubstr("learning_rate"));
  EXPECT_THAT(error_of_whole(minimal, {{"learnin_rate", "1"}}), HasSubstr("did you mean learning_rate"));
  EXPECT_THAT(error_of_whole("base_model: m\noutput_dir: o\ndatasets: [{file: d}]\nlearning_rate: 1\n"),
              HasSubstr("{path: FILE, ...}"));
  const auto dataset = [](const std::string& entry) {
    return "base_model: m\noutput_dir: o\ndatasets: [" + entry + "]\nlearning_rate: 1\n";
  };
  EXPECT_THAT(error_of_whole(dataset("{path: d, typ: alpaca}")),
              HasSubstr("datasets: 'typ' is not a known key of an entry; did you mean type?"));
  EXPECT_THAT(error_of_whole(dataset("{path: d, type: sharegpt}")), Eq("<no error>"));
  EXPECT_THAT(error_of_whole(dataset("{path: d, type: oddity}")),
              HasSubstr("datasets.type: expected one of auto, chat"));
  EXPECT_THAT(error_of_whole(dataset("{path: d, weight: 0}")),
              HasSubstr("datasets.weight: expected a number from 0.0001"));
}

TEST(OptionsTrain, KeysUnderAnotherNameAreSuggestedAndNotMissing) {
  const std::string error =
      error_of_whole("model_name_or_path: m\noutputdir: o\ndataset: [d.jsonl]\nlr: 1\nepochs: 3\nmax_seq_length: 8\n");
  EXPECT_THAT(error, HasSubstr("6 problems:"));
  EXPECT_THAT(error, HasSubstr("line 1: model_name_or_path is not a known key; did you mean base_model?"));
  EXPECT_THAT(error, HasSubstr("line 2: outputdir is not a known key; did you mean output_dir?"));
  EXPECT_THAT(error, HasSubstr("line 4: lr is not a known key; did you mean learning_rate?"));
  EXPECT_THAT(error, HasSubstr("line 5: epochs is not a known key; did you mean num_epochs?"));
  EXPECT_THAT(error, HasSubstr("line 6: max_seq_length is not a known key; did you mean sequence_len?"));
}

// A key that stands for one of ours is named as it is in the file, with its line.
TEST(OptionsTrain, ProblemsOfTranslatedKeysAreTheirs) {
  EXPECT_THAT(error_of_whole(minimal + "dpo_beta: 3\n"),
              HasSubstr("run.yaml, line 5: dpo_beta: rl_beta is for rl: dpo"));
}

TEST(OptionsTrain, AttentionIsReadAndCheckedAtOnce) {
  const TrainOptions o = parse_options(
      minimal + "attention: {mask: causal or prefix, score: softcap(50), head_bias: [1, -2.5]}\n", "r", {});
  EXPECT_EQ(o.attention.mask, "causal or prefix");
  EXPECT_EQ(o.attention.head_bias, (std::vector<float>{1, -2.5f}));
  EXPECT_EQ(parse_options(to_yaml(o), "again", {}).attention.score, "softcap(50)");
  EXPECT_THAT(error_of_whole(minimal + "attention: {mask: causal or prefx}\n"),
              HasSubstr("attention mask \"causal or prefx\", column 11"));
  EXPECT_THAT(error_of_whole(minimal + "attention: {head_bias: 3}\n"), HasSubstr("expected a list of numbers"));
}

TEST(OptionsTrain, DatasetsAreReadAndWrittenWithAllTheirKeys) {
  const std::string yaml =
      "base_model: m\noutput_dir: o\nlearning_rate: 1e-4\ndatasets:\n  - a.jsonl\n"
      "  - {path: b.json, type: chat_template, weight: 1.5, roles_to_train: [assistant, tool], train_on_eos: last,\n"
      "     eot_tokens: [\"<|end|>\"], field_messages: chat, message_property_mappings: {role: who, content: what},\n"
      "     roles: {user: [human, me], assistant: bot}, train_on_inputs: true, chat_template: t.jinja}\n";
  const TrainOptions o = parse_options(yaml, "run.yaml", {});
  ASSERT_EQ(o.datasets.size(), 2u);
  EXPECT_EQ(o.datasets[0], data::DatasetOptions{.path = "a.jsonl"});
  const data::FormatOptions& format = o.datasets[1].format;
  EXPECT_EQ(format.type, "chat_template");
  EXPECT_EQ(o.datasets[1].weight, 1.5);
  EXPECT_EQ(format.roles_to_train, (std::vector<std::string>{"assistant", "tool"}));
  EXPECT_EQ(format.roles.at("user"), (std::vector<std::string>{"human", "me"}));
  EXPECT_EQ(format.message_property_mappings.at("content"), "what");
  EXPECT_EQ(format.eot_tokens, std::vector<std::string>{"<|end|>"});
  EXPECT_EQ(parse_options(to_yaml(o), "again", {}).datasets, o.datasets);
}

TEST(OptionsTrain, MemoryThatThePolicyCannotUseIsRefused) {
  const std::string yaml = "base_model: m\noutput_dir: o\ndatasets: [{path: d}]\nlearning_rate: 1e-5\n";
  const auto parse = [&](const std::string& more) { parse_options(yaml + more, "run.yaml", {}); };
  for (const char* policy : {"keep", "recompute", "2*recompute+keep"}) {
    const std::string with = std::string("activation_policy: ") + policy + "\n";
    EXPECT_THAT(user_error_of([&] { parse(with + "memory: {disk: /tmp}\n"); }), HasSubstr("memory.disk has nothing"));
    EXPECT_THAT(user_error_of([&] { parse(with + "memory: {host: 8, host_layers: 0}\n"); }),
                HasSubstr("memory.host has nothing"));
    EXPECT_NO_THROW(parse(with + "memory: {host: 8}\n"));
  }
  EXPECT_NO_THROW(parse("activation_policy: offload\nmemory: {disk: /tmp, host: 8}\n"));
  EXPECT_NO_THROW(parse("memory: {disk: /tmp}\n"));
  EXPECT_THAT(user_error_of([&] { parse("device: cpu\nmemory: {host: 8}\n"); }),
              HasSubstr("memory.host is for what does not stay on a GPU"));
  EXPECT_NO_THROW(parse("device: cuda\nmemory: {host: 8}\n"));
}

TEST(OptionsTrain, LinesThatAreFurtherInThanTheirsAreHintedAt) {
  const auto error = [](const std::string& yaml) {
    return user_error_of([&] { parse_options(yaml, "run.yaml", {}); });
  };
  EXPECT_THAT(error("a: 1\n  b: 2\n"), HasSubstr("run.yaml, line 2: not valid YAML: illegal map value; is this line"));
  EXPECT_THAT(error("datasets:\n  - path: a\n   type: b\n"), HasSubstr("indented more or less"));
  EXPECT_THAT(error("a: 1\n\tb: 1\n"), HasSubstr("indent with spaces"));
}

// Whoever switches the answers off for once leaves in the file what belongs to them.
TEST(OptionsTrain, WhatBelongsToKeysThatAreTakenBackMayStay) {
  const std::string prompts = "sample_prompts: [a]\n", more = "sample_tokens: 9\nsample_as: text\nsample_steps: 3\n";
  EXPECT_TRUE(parse_options(minimal + prompts + more, "r", {{"sample_prompts", "[]"}}).sample_prompts.empty());
  EXPECT_THAT(user_error_of([&] { parse_options(minimal + more, "r", {}); }),
              HasSubstr("sample_tokens belongs to sample_prompts, which is not given"));
}

TEST(OptionsTrain, WhatIsGivenIsNotMissing) {
  EXPECT_THAT(user_error_of([] {
                parse_options(minimal, "r", {{"learning_rate", "0"}});
              }),
              HasSubstr("command line: learning_rate: expected a number above 0, got 0"));
}

}  // namespace
}  // namespace inlay::options
