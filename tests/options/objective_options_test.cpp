#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "options/minimal.h"
#include "options/train_options.h"
#include "support/files.h"

namespace inlay::options {
namespace {

using inlay::testing::user_error_of;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(OptionsObjective, AreReadAndWrittenBack) {
  const TrainOptions dpo = parsed("rl: dpo\nrl_beta: 0.2\ndpo_label_smoothing: 0.1\nrpo_alpha: 0.5\n");
  EXPECT_EQ(dpo.preference.rl, Rl::dpo);
  EXPECT_EQ(dpo.preference.beta, 0.2);
  const TrainOptions again = parse_options(to_yaml(dpo), "config.yaml", {});
  EXPECT_EQ(to_yaml(again), to_yaml(dpo));
  EXPECT_EQ(again.preference.dpo_label_smoothing, 0.1);
  EXPECT_THAT(to_yaml(dpo), Not(HasSubstr("kto_desirable_weight")));
  const TrainOptions weighted =
      parsed("loss: {token_weight: eaft, eaft_top_k: 8, kl_to_base: 0.05, kl_direction: reverse}\n");
  EXPECT_EQ(weighted.loss.token_weight, TokenWeight::eaft);
  EXPECT_EQ(weighted.loss.kl_direction, ops::DivergenceKind::reverse);
  const TrainOptions distilled = parsed("kd_trainer: true\nkd_teacher: big\nkd_beta: 0.5\nkd_teacher_on: host\n");
  EXPECT_TRUE(distilled.distillation.on_host);
}

TEST(OptionsObjective, KeysOfAnotherLossAreRefused) {
  EXPECT_THAT(error_of("rl_beta: 0.2\n"), HasSubstr("rl_beta is for rl: dpo, ipo, kto, simpo"));
  EXPECT_THAT(error_of("rl: orpo\nrl_beta: 0.2\n"), HasSubstr("rl_beta is for rl"));
  EXPECT_THAT(error_of("rl: dpo\nsimpo_gamma: 1\n"), HasSubstr("simpo_gamma is for rl: simpo"));
  EXPECT_THAT(error_of("kd_alpha: 0.5\n"), HasSubstr("add kd_trainer: true"));
  EXPECT_THAT(error_of("sdft: {match: number}\n"), HasSubstr("sdft.match is for self-distillation; add sdft.enabled"));
  EXPECT_THAT(error_of("sdft: {enabled: true, marker: x}\n"), HasSubstr("sdft.marker needs sdft.match"));
  EXPECT_THAT(error_of("sdft: {enabled: true, template: \"{instruction}\"}\n"),
              HasSubstr("sdft.template must have {response} in it"));
  EXPECT_THAT(error_of("sdft: {enabled: true, temperature: 0, top_p: 0.5}\n"), HasSubstr("sdft.top_p is for sampling"));
  EXPECT_THAT(error_of("sdft: {enabled: true, temperature: 1.0e-9}\n"),
              HasSubstr("sdft.temperature must be 0, or 1e-6 or more"));
  EXPECT_THAT(error_of("sdft: {enabled: true}\ntrain_on_inputs: true\n"),
              HasSubstr("train_on_inputs does not go with sdft"));
  EXPECT_THAT(error_of("sdft: {enabled: true}\nrl: dpo\n"), HasSubstr("sdft does not go with rl"));
  EXPECT_THAT(error_of("sdft: {enabled: true}\nkd_trainer: true\n"), HasSubstr("name a kd_teacher"));
  EXPECT_THAT(error_of("rl: dpo\ndpo_beta: 0.1\n"), "<no error>");
}

// Where predictions are learned there are no labels, and one teacher.
TEST(OptionsObjective, PredictionsStandAlone) {
  const std::string keys = "sdft: {enabled: true, on_policy: true, learn: predictions, ";
  const TrainOptions read = parsed(keys + "teacher: itself, beta: 0.5}\n");
  EXPECT_TRUE(read.sdft.predictions());
  EXPECT_EQ(read.sdft.teacher, SdftTeacher::itself);
  EXPECT_EQ(to_yaml(parse_options(to_yaml(read), "config.yaml", {})), to_yaml(read));
  EXPECT_THAT(error_of("sdft: {enabled: true, learn: predictions}\n"),
              HasSubstr("sdft.learn predictions is for answers of the model in training; add sdft.on_policy: true"));
  EXPECT_THAT(error_of("sdft: {enabled: true, teacher: itself}\n"), HasSubstr("sdft.teacher is for sdft.learn"));
  EXPECT_THAT(error_of("sdft: {enabled: true, beta: 0.5}\n"), HasSubstr("sdft.beta is for sdft.learn"));
  EXPECT_THAT(error_of("sdft: {learn: predictions}\n"), HasSubstr("sdft.learn is for self-distillation"));
  EXPECT_THAT(error_of(keys + "match: number}\n"), HasSubstr("sdft.match is for sdft.learn: answers"));
  EXPECT_THAT(error_of(keys + "beta: 2}\n"), HasSubstr("sdft.beta"));
  for (const char* loss : {"token_weight: dft", "label_smoothing: 0.1", "z_loss: 0.1", "kl_to_base: 0.1"}) {
    EXPECT_THAT(error_of(keys + fmt::format("}}\nloss: {{{}}}\n", loss)), HasSubstr("sdft.learn: predictions")) << loss;
  }
  EXPECT_THAT(error_of(keys + "}\nkd_trainer: true\nkd_teacher: t\n"), HasSubstr("one model is learned from"));
  EXPECT_THAT(error_of(keys + "}\nexcess_length_strategy: split\n"), HasSubstr("parts have no prompts"));
}

TEST(OptionsObjective, DistillationOnPolicyLearnsNoLabels) {
  const std::string keys = "kd_trainer: true\nkd_teacher: t\nkd_on_policy: true\n";
  const TrainOptions read = parsed(keys + "kd_max_new_tokens: 64\nkd_sampling_temperature: 0.7\n");
  EXPECT_TRUE(read.on_policy());
  EXPECT_TRUE(read.answer_writing().predictions);
  EXPECT_FALSE(read.answer_writing().shown);
  EXPECT_EQ(read.answer_writing().max_new_tokens, 64);
  EXPECT_EQ(to_yaml(parse_options(to_yaml(read), "config.yaml", {})), to_yaml(read));
  EXPECT_THAT(error_of("kd_trainer: true\nkd_on_policy: true\n"), HasSubstr("kd_on_policy needs kd_teacher"));
  EXPECT_THAT(error_of("kd_on_policy: true\n"), HasSubstr("kd_on_policy is for distillation"));
  EXPECT_THAT(error_of("kd_trainer: true\nkd_teacher: t\nkd_max_new_tokens: 9\n"),
              HasSubstr("kd_max_new_tokens is for kd_on_policy: true"));
  EXPECT_THAT(error_of(keys + "kd_ce_alpha: 0.5\n"), HasSubstr("kd_on_policy: true learns no labels"));
  EXPECT_THAT(error_of(keys + "loss: {token_weight: stm}\n"), HasSubstr("kd_on_policy: true learns none"));
  EXPECT_THAT(error_of(keys + "sdft: {enabled: true}\n"), HasSubstr("sdft does not go with kd_on_policy"));
  EXPECT_THAT(error_of(keys + "train_on_inputs: true\n"), HasSubstr("does not go with kd_on_policy"));
  EXPECT_THAT(error_of(keys + "excess_length_strategy: split\n"), HasSubstr("parts have no prompts"));
}

// Each with its own line, together with what other groups of keys have to say.
TEST(OptionsObjective, AllContradictionsAreToldAtOnce) {
  const std::string error = error_of(
      "rl: dpo\nsimpo_gamma: 1\nloss:\n  label_smoothing: 0.1\n  eaft_top_k: 5\nkd_alpha: 0.5\n"
      "early_stopping_patience: 2\nsample_steps: 3\nsample_tokens: 9\nadapter: lora\nlora_dropout: 0.1\nlora_init: "
      "pissa\n"
      "lora_free_ratio: 0.2\nosft: {unfreeze_rank_ratio: 0.5}\n");
  for (const char* line :
       {"12 problems", "line 6: simpo_gamma is for rl: simpo", "line 8: loss.label_smoothing does not go with rl",
        "line 9: loss.eaft_top_k is for loss.token_weight: eaft", "line 10: kd_alpha is for distillation",
        "line 11: early_stopping_patience is given, but neither", "line 12: sample_steps belongs to sample_prompts",
        "line 13: sample_tokens belongs to sample_prompts", "line 14: lora_r is required",
        "line 14: lora_alpha is required", "line 14: an adapter needs something to adapt",
        "line 14: adapter and osft are both given", "line 17: lora_free_ratio is for lora_init: free"}) {
    EXPECT_THAT(error, HasSubstr(line));
  }
  EXPECT_THAT(error, Not(HasSubstr("load_best_model_at_end")));  // which nobody gave
}

TEST(OptionsObjective, WhatDoesNotGoTogetherIsRefused) {
  EXPECT_THAT(error_of("rl: dpo\nloss: {token_weight: dft}\n"), HasSubstr("loss.token_weight does not go with rl"));
  EXPECT_THAT(error_of("rl: dpo\nloss: {label_smoothing: 0.1}\n"), HasSubstr("loss.label_smoothing"));
  EXPECT_THAT(error_of("rl: dpo\nexcess_length_strategy: split\n"), HasSubstr("excess_length_strategy"));
  EXPECT_THAT(error_of("loss: {kl_direction: reverse}\n"), HasSubstr("loss.kl_direction needs loss.kl_to_base"));
  EXPECT_THAT(error_of("loss: {eaft_top_k: 5}\n"), HasSubstr("token_weight: eaft"));
  EXPECT_THAT(error_of("kd_trainer: true\nkd_beta: 1\n"), HasSubstr("kd_beta 1 needs kd_teacher"));
  EXPECT_THAT(error_of("kd_trainer: true\nkd_teacher: t\nloss: {kl_to_base: 1}\n"), HasSubstr("one model"));
  // By default nothing of the labels' own loss is taken, and what would change it would be ignored.
  const std::string taught = "kd_trainer: true\nkd_teacher: t\n";
  for (const char* keys : {"token_weight: dft", "label_smoothing: 0.1", "z_loss: 0.1"}) {
    const std::string loss = fmt::format("loss: {{{}}}\n", keys);
    EXPECT_THAT(error_of(taught + loss),
                HasSubstr("is for the labels' own loss, of which kd_ce_alpha: 0 takes nothing"));
    EXPECT_EQ(error_of(taught + "kd_ce_alpha: 0.5\n" + loss), "<no error>");
  }
  EXPECT_EQ(error_of(taught + "loss: {token_weight: stm}\n"), "<no error>");
}

}  // namespace
}  // namespace inlay::options
