#include "options/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "options/train_options.h"
#include "support/files.h"

namespace inlay::options {
namespace {

using inlay::testing::user_error_of;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(OptionsImport, AFileOfAxolotlBecomesOneOfOurs) {
  const Imported imported = import_axolotl(
      "base_model: org/model\nmodel_type: AutoModelForCausalLM\nload_in_4bit: true\nadapter: qlora\n"
      "datasets:\n  - path: org/data\n    type: chat_template.default\n    split: train[:10%]\n    field_thinking: "
      "think\n"
      "  - path: b.jsonl\n    type: {field_instruction: q, field_output: a, format: 'Q: {instruction}'}\n"
      "val_set_size: 0.05\noutput_dir: ./out\nlora_r: 16\nlora_alpha: 32\nlora_target_linear: true\n"
      "gradient_accumulation_steps: 4\nmicro_batch_size: 2\nnum_epochs: 1\noptimizer: paged_adamw_8bit\n"
      "lr_scheduler: cosine\nlearning_rate: 2e-4\nbf16: auto\ntf32: false\nwandb_project: mine\nwandb_entity:\n"
      "flash_attention: true\nwarmup_ratio: 0.1\nevals_per_epoch: 2\nsaves_per_epoch: 1\nunheard_of: [1, 2]\n"
      "deepspeed: zero2.json\nfsdp:\nspecial_tokens:\n",
      "axolotl.yml");
  EXPECT_THAT(imported.open, IsEmpty());
  const TrainOptions o = parse_options(imported.yaml, "run.yaml", {});
  EXPECT_THAT(o.notes, IsEmpty());
  EXPECT_EQ(o.base_model, "org/model");
  EXPECT_EQ(o.datasets[0].format.type, "chat_template");
  EXPECT_EQ(o.datasets[0].split, "train[:10%]");
  EXPECT_EQ(o.datasets[1].format.field_instruction, "q");
  EXPECT_EQ(o.optimizer_state, DType::u8);
  EXPECT_EQ(o.parallel.zero, parallel::Zero::gradients);
  EXPECT_EQ(o.evals_per_epoch, 2);
  // Where axolotl's defaults are others.
  EXPECT_FALSE(o.sample_packing);
  EXPECT_EQ(o.sequence_len, 512);
  EXPECT_EQ(o.excess_length_strategy, data::Oversized::drop);
  EXPECT_THAT(imported.translated, Contains("sample_packing: false is axolotl's default"));
  EXPECT_THAT(imported.unneeded, Contains(HasSubstr("bf16: auto: bf16 with fp32 master weights is the default")));
  EXPECT_THAT(imported.unneeded, Contains(HasSubstr("datasets.field_thinking")));
  EXPECT_THAT(imported.lost,
              Contains(HasSubstr("wandb_project: mine: not supported; leave it out, or write report_to")));
  EXPECT_THAT(imported.lost, Contains("unheard_of: [1, 2]: the key is not known here"));
  EXPECT_THAT(imported.remarks(), HasSubstr("not carried over:\n  wandb_project"));
  EXPECT_THAT(imported.yaml, Not(HasSubstr("wandb")));
}

TEST(OptionsImport, WhatIsLeftToDecideIsSaid) {
  const Imported imported =
      import_axolotl("base_model: m\nlr_scheduler: constant\nwarmup_steps: 10\nlora_r: 8\n", "a.yml");
  EXPECT_THAT(imported.open, Contains(HasSubstr("datasets is required")));
  EXPECT_THAT(imported.open, Contains(HasSubstr("learning_rate is required")));
  EXPECT_THAT(imported.unneeded, Contains("warmup_steps: lr_scheduler: constant has no warm-up in axolotl"));
  EXPECT_THAT(imported.unneeded, Contains("lora_r: there is no adapter"));
  EXPECT_THAT(user_error_of([] { import_axolotl("a: [", "a.yml"); }), HasSubstr("a.yml, line 1: not valid YAML"));
  EXPECT_THAT(user_error_of([] { import_axolotl("- a", "a.yml"); }), HasSubstr("as axolotl's files have"));
}

TEST(OptionsImport, ACommandLineOfMiniTrainerBecomesAConfiguration) {
  const Imported imported = import_mini_trainer({"torchrun",
                                                 "--nproc-per-node=8",
                                                 "--model-name-or-path",
                                                 "m",
                                                 "--data_path",
                                                 "d.jsonl",
                                                 "--output-dir",
                                                 "o",
                                                 "--batch-size",
                                                 "128",
                                                 "--max-tokens-per-gpu",
                                                 "4096",
                                                 "--learning-rate",
                                                 "1e-5",
                                                 "--osft",
                                                 "--osft-unfreeze-rank-ratio",
                                                 "0.25",
                                                 "--training-mode",
                                                 "epoch",
                                                 "--max-epochs",
                                                 "3",
                                                 "--use-liger-kernels",
                                                 "--wandb-project",
                                                 "w",
                                                 "--odd"});
  EXPECT_THAT(imported.open, IsEmpty());
  const TrainOptions o = parse_options(imported.yaml, "run.yaml", {});
  EXPECT_EQ(o.datasets[0].path, "d.jsonl");
  EXPECT_EQ(o.gradient_accumulation_steps, 128);
  EXPECT_FALSE(o.sample_packing);
  EXPECT_EQ(o.sequence_len, 4096);
  EXPECT_EQ(o.num_epochs, 3);
  EXPECT_EQ(o.adam_beta2, 0.95);
  EXPECT_TRUE(o.osft.enabled);
  EXPECT_EQ(o.osft.unfreeze_rank_ratio, 0.25);
  EXPECT_THAT(imported.lost, Contains(HasSubstr("--odd true: the argument is not known here")));
  EXPECT_THAT(imported.lost, Contains(HasSubstr("--wandb-project w")));
}

}  // namespace
}  // namespace inlay::options
