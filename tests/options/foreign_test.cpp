#include "options/foreign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "options/all_fields.h"
#include "options/minimal.h"
#include "options/train_options.h"
#include "support/files.h"
#include "train/schedule.h"

namespace inlay::options {
namespace {

using inlay::testing::user_error_of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(OptionsForeign, AllProblemsComeInOneMessageEachWithItsLine) {
  const std::string error = user_error_of([] {
    parse_options(
        "base_model: m\ndatasets:\n  - path: d\n    typ: alpaca\n    weight: 0\n  - {path: e, wieght: 1}\n"
        "learning_rate: fast\nfp16: true\nlearning_rat: 1\nwarmup_steps: 3\nwarmup_ratio: 0.1\nrl: grpo\n",
        "run.yaml", {{"sequence_len", "-1"}});
  });
  EXPECT_THAT(error, AllOf(HasSubstr("10 problems:"), HasSubstr("run.yaml, line 4: datasets: 'typ' is not a known key"),
                           HasSubstr("run.yaml, line 5: datasets.weight: expected a number"),
                           HasSubstr("run.yaml, line 6: datasets: 'wieght' is not a known key of an entry; did you "
                                     "mean weight?"),
                           HasSubstr("run.yaml, line 7: learning_rate: expected a number")));
  EXPECT_THAT(error, AllOf(HasSubstr("run.yaml, line 8: fp16: fp16 is not supported; write bf16: auto"),
                           HasSubstr("run.yaml, line 9: learning_rat is not a known key; did you mean learning_rate?"),
                           HasSubstr("run.yaml, line 10: warmup_steps and warmup_ratio are both given"),
                           HasSubstr("run.yaml, line 12: rl: expected one of"), HasSubstr("command line: sequence_len"),
                           HasSubstr("run.yaml: output_dir is required")));
  // As they stand in the file; what has no line comes last.
  std::size_t before = 0;
  for (const char* place : {"line 4:", "line 5:", "line 6:", "line 7:", "line 8:", "line 9:", "line 10:", "line 12:"}) {
    const std::size_t at = error.find(place);
    EXPECT_GT(at, before) << place << " in " << error;
    before = at;
  }
  EXPECT_GT(error.find("command line: "), before);
  EXPECT_GT(error.find("run.yaml: output_dir"), before);
}

// Boards may be switched off for once, on a command line.
TEST(OptionsForeign, KeysOfABoardMayStayWhereBoardsAreSwitchedOff) {
  const std::string yaml = minimal +
                           "report_to: mlflow\nmlflow_tracking_uri: http://host\nmlflow_run_name: r\n"
                           "wandb_name: w\n";
  EXPECT_THAT(parse_options(yaml, "run.yaml", {{"report_to", "none"}}).notes,
              Contains("not needed with report_to: none: mlflow_tracking_uri, mlflow_run_name"));
  EXPECT_THAT(user_error_of([&] {
                parse_options(yaml, "run.yaml", {{"report_to", "tensorboard"}});
              }),
              HasSubstr("run.yaml, line 6: mlflow_tracking_uri is given, but report_to does not name mlflow"));
  EXPECT_THAT(user_error_of([&] { parsed("mlflow_run_name: r\n"); }), HasSubstr("report_to does not name mlflow"));
}

TEST(OptionsForeign, KeysWithoutAValueAreAbsent) {
  const TrainOptions o = parsed(
      "wandb_project:\nwandb_name: ''\nfsdp: []\nspecial_tokens: {}\nsave_steps: ~\nlr_scheduler: null\nosft:\n"
      "val_set_size:\n");
  EXPECT_THAT(o.notes, IsEmpty());
  EXPECT_FALSE(o.osft.enabled);
  EXPECT_EQ(o.lr_scheduler, Decay::cosine);
  // On a command line, nothing takes back what the file says.
  EXPECT_EQ(parse_options(minimal + "sequence_len: 7\n", "r", {{"sequence_len", ""}}).sequence_len, 2048);
}

TEST(OptionsForeign, WhatIsAlwaysSoIsAcceptedAndSaidInOneLine) {
  const TrainOptions o = parsed(
      "bf16: auto\ntf32: true\nflash_attention: true\ngradient_checkpointing: true\n"
      "gradient_checkpointing_kwargs: {use_reentrant: false}\npad_to_sequence_len: true\nstrict: false\n"
      "plugins:\n  - axolotl.integrations.liger.LigerPlugin\n"
      "  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\nliger_rope: true\ntorch_compile: auto\n"
      "optimizer: adamw_torch_fused\nspecial_tokens: {pad_token: <pad>}\nloss_watchdog_threshold: 5.0\n"
      "loss_watchdog_patience: 3\neval_batch_size: 2\nload_in_8bit: false\n");
  EXPECT_THAT(o.notes, ElementsAre(AllOf(HasSubstr("not needed here: bf16, tf32, flash_attention"),
                                         HasSubstr("eval_batch_size (docs/migration.md)"))));
}

TEST(OptionsForeign, WhatIsNotSoIsRefusedWithWhatToDo) {
  EXPECT_THAT(error_of("optimizer: adafactor\n"), HasSubstr("expected adamw, muon or schedule_free_adamw"));
  EXPECT_THAT(error_of("plugins: [a.b.SpectrumPlugin, axolotl.integrations.liger.LigerPlugin]\n"),
              AllOf(HasSubstr("a.b.SpectrumPlugin is not supported"), Not(HasSubstr("Liger"))));
  EXPECT_THAT(error_of("wandb_project: mine\n"), HasSubstr("wandb sync uploads"));
  EXPECT_THAT(error_of("context_parallel_size: 4\n"), HasSubstr("parallel.zero"));
  EXPECT_THAT(error_of("resume_from_checkpoint: out/checkpoint-10\n"), HasSubstr("--resume"));
  EXPECT_THAT(error_of("batch_size: 8\n"), HasSubstr("gradient_accumulation_steps"));
  EXPECT_THAT(error_of("deepspeed: ds.json\n"), HasSubstr("write parallel: {zero: 1}"));
  EXPECT_THAT(error_of("fp8: [1]\n"), HasSubstr("fp8: expected a map of keys"));
  EXPECT_THAT(error_of("kd_trainer: true\nkd_normalize_topk: false\n"), HasSubstr("are always normalised"));
  EXPECT_THAT(error_of("save_safetensors: false\n"), HasSubstr("always written as safetensors"));
  EXPECT_THAT(error_of("eaft_alpha: 2\n"), HasSubstr("not raised to a power"));
}

// Their names have the word, their steps are others.
TEST(OptionsForeign, OtherOptimizersDoNotPassForAdamW) {
  for (const char* name : {"galore_adamw", "galore_adamw_8bit", "apollo_adamw", "grokadamw", "stable_adamw",
                           "adopt_adamw", "schedule_free_adamw_8bit", "lomo"}) {
    EXPECT_THAT(error_of(fmt::format("optimizer: {}\n", name)), HasSubstr("expected adamw, muon")) << name;
  }
  for (const char* name : {"adamw_torch", "adamw_torch_fused", "adamw_hf", "paged_adamw_32bit", "AdamW_apex_fused"}) {
    EXPECT_EQ(parsed(fmt::format("optimizer: {}\n", name)).optimizer_state, DType::f32) << name;
  }
  for (const char* name : {"adamw_8bit", "paged_adamw_8bit", "ao_adamw_4bit"}) {
    EXPECT_EQ(parsed(fmt::format("optimizer: {}\n", name)).optimizer_state, DType::u8) << name;
  }
}

TEST(OptionsForeign, WhatDoesNothingWithoutAnotherKeyIsAccepted) {
  EXPECT_THAT(parsed("wandb_watch: gradients\nwandb_name: a\n").notes,
              ElementsAre(HasSubstr("wandb_watch, wandb_name")));
  EXPECT_EQ(parsed("use_eaft: true\neaft_k: 12\neaft_alpha: 1.0\n").loss.eaft_top_k, 12);
  EXPECT_TRUE(parsed("kd_trainer: true\nkd_normalize_topk: true\n").distillation.enabled);
}

TEST(OptionsForeign, WordsOfAxolotlMeanTheSame) {
  const TrainOptions o = parsed(
      "lr_scheduler: constant_with_warmup\noptimizer: adamw_bnb_8bit\nmax_steps: 1_000\nwarmup_steps: 0.1\n"
      "deepspeed: deepspeed_configs/zero3_bf16.json\nshuffle_merged_datasets: false\nlabel_smoothing_factor: 0.1\n"
      "ddp_timeout: 7200\ngpu_memory_limit: 60GiB\nfp8: true\n");
  EXPECT_EQ(o.lr_scheduler, Decay::constant);
  EXPECT_EQ(o.optimizer_state, DType::u8);
  EXPECT_EQ(o.max_steps, 1000);
  EXPECT_EQ(o.warmup_steps, 0);
  EXPECT_EQ(o.warmup_ratio, 0.1);
  EXPECT_EQ(o.parallel.zero, parallel::Zero::weights);
  EXPECT_FALSE(o.shuffle);
  EXPECT_EQ(o.loss.label_smoothing, 0.1);
  EXPECT_EQ(o.parallel.timeout, 7200);
  EXPECT_EQ(o.memory.device, 60.0);
  EXPECT_EQ(o.matmul_dtype, MatmulDtype::fp8);
  EXPECT_THAT(o.notes, ::testing::Contains(
                           HasSubstr("run.yaml, line 6: optimizer: adamw_bnb_8bit is read as optimizer_state: 8bit")));
  EXPECT_EQ(parsed("bf16: false\n").dtype, DType::f32);
  EXPECT_EQ(parsed("fsdp: [hybrid_shard]\n").parallel.shard, parallel::ShardGroup::node);
  // What our own keys say holds.
  EXPECT_EQ(parsed("optimizer: adamw_bnb_8bit\noptimizer_state: fp32\n").optimizer_state, DType::f32);
}

TEST(OptionsForeign, ATemplateOfOnesOwnHasTwoKeysInAxolotl) {
  EXPECT_EQ(parsed("chat_template: jinja\nchat_template_jinja: t.jinja\n").chat_template, "t.jinja");
  EXPECT_EQ(parsed("chat_template_jinja: t.jinja\n").chat_template, "t.jinja");
  EXPECT_THAT(error_of("chat_template: jinja\nchat_template_jinja: '{{ messages }}'\n"),
              HasSubstr("run.yaml, line 6: chat_template_jinja: write the template to a file"));
}

TEST(OptionsForeign, EntriesOfDatasetsMayBeWrittenAsAxolotlHasThem) {
  const auto o = parse_options(
      "base_model: m\noutput_dir: o\nlearning_rate: 1\ndatasets:\n"
      "  - {path: a, type: chat_template.default}\n  - {path: b, type: sharegpt}\n"
      "  - path: c\n    type: {field_instruction: q, field_output: a, format: 'Q {instruction}'}\n",
      "r", {});
  EXPECT_EQ(o.datasets[0].format.type, "chat_template");
  EXPECT_EQ(o.datasets[1].format.type, "chat_template");
  EXPECT_EQ(o.datasets[2].format.field_instruction, "q");
  EXPECT_EQ(o.datasets[2].format.format, "Q {instruction}");
}

TrainOptions learning_from(const std::string& rl, const std::string& entry) {
  return parse_options(
      "base_model: m\noutput_dir: o\nlearning_rate: 1\ndatasets:\n  - {path: a, " + entry + "}\nrl: " + rl + "\n", "r",
      {});
}

// In axolotl they are called by the format of the conversations that answers belong to.
TEST(OptionsForeign, RowsOfAnObjectiveThatComparesAnswersAreThoseThatItLearnsFrom) {
  for (const char* rl : {"dpo", "ipo", "orpo", "simpo"}) {
    const TrainOptions o = learning_from(rl, "type: chat_template.default, field_messages: talk");
    EXPECT_EQ(o.datasets[0].format.type, "preference") << rl;
    EXPECT_EQ(o.datasets[0].format.field_messages, "talk");
    EXPECT_THAT(o.notes, Contains(HasSubstr("r, line 5: datasets.type: chat_template.default is read as preference")));
  }
  EXPECT_EQ(learning_from("dpo", "type: chat_template.argilla_chat").datasets[0].format.type, "preference");
  EXPECT_EQ(learning_from("kto", "type: chat_template").datasets[0].format.type, "judged");
  EXPECT_EQ(learning_from("kto", "type: auto").datasets[0].format.type, "auto");
  const TrainOptions tested =
      parse_options(minimal + "rl: dpo\ntest_datasets: [{path: t, type: chat_template}]\n", "r", {});
  EXPECT_EQ(tested.test_datasets[0].format.type, "preference");
  EXPECT_EQ(parse_options(minimal + "test_datasets: [{path: t, type: chat_template}]\n", "r", {})
                .test_datasets[0]
                .format.type,
            "chat_template");
}

TEST(OptionsForeign, ATypeWithATemplateInItsNameIsATypeAndATemplate) {
  const TrainOptions pairs = learning_from("dpo", "type: chatml.intel");
  EXPECT_EQ(pairs.datasets[0].format.type, "preference");
  EXPECT_EQ(pairs.datasets[0].format.chat_template, "chatml");
  EXPECT_EQ(pairs.datasets[0].format.field_messages, "question");
  const TrainOptions judged = learning_from("kto", "type: llama3.argilla");
  EXPECT_EQ(judged.datasets[0].format.type, "judged");
  EXPECT_EQ(judged.datasets[0].format.chat_template, "llama3");
  EXPECT_EQ(judged.datasets[0].format.field_messages, "instruction");
  // What the entry says itself holds.
  EXPECT_EQ(learning_from("dpo", "type: chatml.icr, chat_template: qwen3").datasets[0].format.chat_template, "qwen3");
  EXPECT_EQ(learning_from("orpo", "type: llama3.ultra").datasets[0].format.chat_template, "llama3");
  EXPECT_EQ(learning_from("dpo", "type: passthrough.default").datasets[0].format.type, "preference");
  const auto refused = [](const std::string& rl, const std::string& type) {
    return user_error_of([&] { learning_from(rl, "type: " + type); });
  };
  EXPECT_THAT(refused("dpo", "zephyr.nectar"), HasSubstr("chat_template: FILE.jinja; write Zephyr's template"));
  EXPECT_THAT(refused("dpo", "chatml.unheard"), HasSubstr("rows have a prompt or messages, chosen and rejected"));
  EXPECT_THAT(refused("kto", "chatml.unheard"),
              HasSubstr("write type: preference (for rl: kto, type: judged) and chat_template: chatml; rows have"));
}

TEST(OptionsForeign, MuonIsForMatricesThatTrainAsAWhole) {
  EXPECT_EQ(parsed("optimizer: muon\n").optimizer, OptimizerKind::muon);
  EXPECT_THAT(error_of("optimizer: muon\nadapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\n"),
              HasSubstr("run.yaml, line 5: optimizer: muon is for matrices that train as a whole, and an adapter"));
  EXPECT_THAT(error_of("optimizer: muon\nosft: {unfreeze_rank_ratio: 0.5}\n"), HasSubstr("and osft trains factors"));
  EXPECT_THAT(error_of("optimizer: muon\nparallel: {zero: 2}\n"), HasSubstr("write parallel: {zero: 0}"));
  EXPECT_THAT(error_of("optimizer: muon\noptimizer_state: 8bit\n"), HasSubstr("8bit is for AdamW"));
  EXPECT_THAT(error_of("muon: {momentum: 0.9}\n"), HasSubstr("muon.momentum is for optimizer: muon"));
  EXPECT_THAT(error_of("muon: {scale: shape}\n"), HasSubstr("muon.scale is for optimizer: muon"));
  EXPECT_EQ(error_of("optimizer: muon\nmuon: {momentum: 0.9, scale: shape}\n"), "<no error>");
  const std::string free = "optimizer: schedule_free_adamw\n";
  EXPECT_EQ(parsed(free).optimizer, OptimizerKind::schedule_free);
  // What a run writes down can be read again.
  EXPECT_EQ(parse_options(to_yaml(parsed(free)), "again", {}).lr_scheduler, Decay::constant);
  EXPECT_EQ(parsed(free + "lr_scheduler: constant_with_warmup\n").optimizer, OptimizerKind::schedule_free);
  EXPECT_THAT(error_of(free + "lr_scheduler: cosine\n"), HasSubstr("write lr_scheduler: constant"));
  EXPECT_THAT(error_of(free + "optimizer_state: bf16\n"), HasSubstr("in fp32; leave the key out"));
  EXPECT_THAT(error_of(free + "osft: {unfreeze_rank_ratio: 0.5}\n"), HasSubstr("does not go with osft"));
  EXPECT_THAT(error_of(free + "parallel: {zero: 1}\n"), HasSubstr("write parallel: {zero: 0}"));
}

// A table of answers is worth something only if what it names exists.
TEST(OptionsForeign, AnswersNameKeysThatExistWithValuesThatTheyTake) {
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"bf16", "false"},
                                                        {"use_dft", "true"},
                                                        {"use_tensorboard", "true"},
                                                        {"dpo_beta", "0.2"},
                                                        {"fp8", "true"},
                                                        {"deepspeed", "zero2"},
                                                        {"fsdp", "[hybrid_shard]"},
                                                        {"fsdp_config", "{a: no_shard}"},
                                                        {"ddp_timeout", "30"},
                                                        {"shuffle_merged_datasets", "no"},
                                                        {"gpu_memory_limit", "8GB"},
                                                        {"dp_replicate_size", "2"},
                                                        {"peft_init_lora_weights", "pissa_niter_4"},
                                                        {"curriculum_sampling", "true"}}) {
    const auto meaning = option::meaning_of_key(key, YAML::Load(value));
    ASSERT_TRUE(meaning && !meaning->keys.empty()) << key;
    for (const auto& [ours, text] : meaning->keys) {
      const option::Field* field = option::find_field(ours);
      ASSERT_NE(field, nullptr) << ours;
      TrainOptions o;
      EXPECT_NO_THROW(field->set(o, YAML::Load(text), {"f", 1, ours})) << ours << ": " << text;
    }
  }
}

TEST(OptionsForeign, EvaluationsAndCheckpointsMayBeCountedByEpochOrShare) {
  const std::string data = "test_datasets: [t]\n";
  const auto every = [&](const std::string& more) {
    const TrainOptions o = train::in_steps(parsed(data + more), 120, 40.0);
    return std::pair(o.eval_steps, o.save_steps);
  };
  EXPECT_EQ(every("evals_per_epoch: 4\nsaves_per_epoch: 1\n"), std::pair(std::int64_t{10}, std::int64_t{40}));
  EXPECT_EQ(every("eval_steps: 0.05\nsave_steps: 0.5\n"), std::pair(std::int64_t{6}, std::int64_t{60}));
  EXPECT_EQ(every("eval_strategy: epoch\nsave_strategy: 'no'\n"), std::pair(std::int64_t{40}, std::int64_t{0}));
  EXPECT_EQ(every("eval_strategy: steps\neval_steps: 7\nsave_steps: 3\n"), std::pair(std::int64_t{7}, std::int64_t{3}));
  EXPECT_EQ(every("evals_per_epoch: 400\n").first, 1);
  EXPECT_THAT(error_of(data + "eval_strategy: epoch\neval_steps: 3\n"), HasSubstr("does not go with eval_steps"));
  EXPECT_THAT(error_of(data + "save_strategy: no\nsaves_per_epoch: 1\n"),
              HasSubstr("does not go with saves_per_epoch"));
  EXPECT_THAT(error_of("saves_per_epoch: 1\nsave_steps: 3\n"), HasSubstr("one of them is enough"));
  EXPECT_THAT(error_of("eval_steps: 2.5\n"), HasSubstr("a whole number of steps, or a share of the run below 1"));
  for (const char* key : {"evals_per_epoch: 2\n", "eval_strategy: epoch\n"}) {
    EXPECT_THAT(parsed(key).notes, ElementsAre(HasSubstr("nothing to evaluate on")));
    EXPECT_EQ(train::in_steps(parsed(key), 120, 40.0).eval_steps, 0);
  }
  const std::string yaml = to_yaml(parsed(data + "eval_steps: 0.05\nsaves_per_epoch: 2\n"));
  EXPECT_EQ(to_yaml(parse_options(yaml, "again", {})), yaml);
}

}  // namespace
}  // namespace inlay::options
