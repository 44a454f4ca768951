#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "options/train_options.h"
#include "support/files.h"

namespace inlay::options {
namespace {

using inlay::testing::user_error_of;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string minimal = "base_model: m\noutput_dir: o\ndatasets: [{path: d.jsonl}]\nlearning_rate: 1e-4\n";

TrainOptions parsed(const std::string& yaml) { return parse_options(minimal + yaml, "run.yaml", {}); }
std::string error_of(const std::string& yaml) {
  return user_error_of([&] { parsed(yaml); });
}

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
  EXPECT_THAT(error_of("rl: dpo\ndpo_beta: 0.1\n"), "<no error>");
}

TEST(OptionsObjective, WhatDoesNotGoTogetherIsRefused) {
  EXPECT_THAT(error_of("rl: dpo\nloss: {token_weight: dft}\n"), HasSubstr("loss.token_weight does not go with rl"));
  EXPECT_THAT(error_of("rl: dpo\nloss: {label_smoothing: 0.1}\n"), HasSubstr("loss.label_smoothing"));
  EXPECT_THAT(error_of("rl: dpo\nexcess_length_strategy: split\n"), HasSubstr("excess_length_strategy"));
  EXPECT_THAT(error_of("loss: {kl_direction: reverse}\n"), HasSubstr("loss.kl_direction wants loss.kl_to_base"));
  EXPECT_THAT(error_of("loss: {eaft_top_k: 5}\n"), HasSubstr("token_weight: eaft"));
  EXPECT_THAT(error_of("kd_trainer: true\nkd_beta: 1\n"), HasSubstr("kd_beta 1 wants kd_teacher"));
  EXPECT_THAT(error_of("kd_trainer: true\nkd_teacher: t\nloss: {kl_to_base: 1}\n"), HasSubstr("one model"));
}

}  // namespace
}  // namespace inlay::options
