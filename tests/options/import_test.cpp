#include "options/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "options/train_options.h"
#include "support/files.h"

namespace inlay::options {
namespace {

using inlay::testing::user_error_of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
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
  EXPECT_THAT(user_error_of([] { import_axolotl("- a", "a.yml"); }), HasSubstr("as in axolotl's files"));
}

TEST(OptionsImport, PairsOfAnswersKeepTypeAndTemplate) {
  const auto imported = [](const std::string& rl, const std::string& entry) {
    return import_axolotl("base_model: org/m\nlearning_rate: 1\noutput_dir: o\nrl: " + rl +
                              "\ndatasets:\n  - {path: org/d, " + entry + "}\n",
                          "a.yml");
  };
  const auto read = [](const Imported& result) {
    const auto format = parse_options(result.yaml, "run.yaml", {}).datasets[0].format;
    return format.type + " " + format.chat_template + " " + format.field_messages;
  };
  EXPECT_EQ(read(imported("dpo", "type: chatml.intel")), "preference chatml question");
  EXPECT_EQ(read(imported("kto", "type: chatml.intel")), "judged chatml question");
  EXPECT_EQ(read(imported("kto", "type: llama3.ultra")), "judged llama3 ");
  EXPECT_EQ(read(imported("dpo", "type: chat_template.default, field_messages: talk")),
            "preference tokenizer_default talk");
  EXPECT_EQ(read(imported("kto", "type: chat_template")), "judged tokenizer_default ");
  const Imported ultra = imported("orpo", "type: llama3.ultra");
  EXPECT_EQ(read(ultra), "preference llama3 ");
  EXPECT_THAT(ultra.open, IsEmpty());
  const Imported zephyr = imported("dpo", "type: zephyr.nectar");
  EXPECT_EQ(read(zephyr), "preference FILE.jinja ");
  EXPECT_THAT(zephyr.open, ElementsAre(HasSubstr("write Zephyr's template into that file"), HasSubstr("'FILE.jinja'")));
}

TEST(OptionsImport, WhatEvaluatesNothingIsLeftOut) {
  const std::string yaml =
      "base_model: org/m\nlearning_rate: 1\noutput_dir: o\ndatasets: [{path: org/d}]\neval_steps: 10\n"
      "early_stopping_patience: 3\nload_best_model_at_end: true\nmetric_for_best_model: eval_loss\n"
      "save_strategy: best\n";
  const Imported nothing = import_axolotl(yaml + "val_set_size: 0.0\n", "a.yml");
  EXPECT_THAT(nothing.open, IsEmpty());
  EXPECT_THAT(nothing.unneeded, Contains("early_stopping_patience: 3: without test_datasets or val_set_size "
                                         "there is nothing to evaluate on"));
  const TrainOptions without = parse_options(nothing.yaml, "run.yaml", {});
  EXPECT_EQ(without.eval_steps, 0);
  EXPECT_EQ(without.early_stopping_patience, 0);
  const TrainOptions with = parse_options(import_axolotl(yaml + "val_set_size: 0.1\n", "a.yml").yaml, "run.yaml", {});
  EXPECT_EQ(with.eval_steps, 10);
  EXPECT_EQ(with.early_stopping_patience, 3);
}

TEST(OptionsImport, WhatMayHaveBeenMeantIsSaid) {
  const Imported imported = import_axolotl(
      "base_model: org/m\noutput_dir: o\nlearning_rat: 1e-4\nchat_template: lama3\n"
      "datasets: [{path: org/d, typ: alpaca, chat_template: chatmll}]\nloss_watchdog_threshold: 5\n",
      "a.yml");
  EXPECT_THAT(imported.lost, Contains("learning_rat: 1e-4: the key is not known here; did you mean learning_rate?"));
  EXPECT_THAT(imported.lost, Contains("datasets.typ: the key is not known here; did you mean type?"));
  EXPECT_THAT(imported.open, Contains(HasSubstr("; did you mean llama3?")));
  EXPECT_THAT(imported.open, Contains(HasSubstr("; did you mean chatml?")));
  const Imported other = import_axolotl("base_model: org/m\nchat_template: llama4\n", "a.yml");
  EXPECT_THAT(other.open, Contains(AllOf(HasSubstr("'llama4' is neither"), Not(HasSubstr("did you mean")))));
  EXPECT_THAT(imported.unneeded,
              Contains(HasSubstr("loss_watchdog_threshold: 5: a run stops if its loss is not finite")));
}

// A file without a folder in its name is in the working directory.
TEST(OptionsImport, PathsCountFromTheNewFileWhereverThatIs) {
  const inlay::testing::TempFolder folder;
  folder.write("rows.jsonl", "");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const auto path = [](const std::string& source, const std::optional<std::filesystem::path>& to) {
    const std::string yaml = "base_model: org/m\nlearning_rate: 1\noutput_dir: o\ndatasets: [rows.jsonl]\n";
    return parse_options(import_axolotl(yaml, source, to).yaml, "run.yaml", {}).datasets[0].path;
  };
  EXPECT_EQ(path("a.yml", ""), "rows.jsonl");
  EXPECT_EQ(path(folder / "a.yml", ""), "rows.jsonl");
  EXPECT_EQ(path("conf/a.yml", "conf"), "../rows.jsonl");
  EXPECT_EQ(path("a.yml", folder.path() / "else/where"), "../../rows.jsonl");
  EXPECT_EQ(path("a.yml", std::nullopt), "rows.jsonl");
  std::filesystem::current_path(before);
}

TEST(OptionsImport, WhatStartsMiniTrainerIsNoArgumentOfIt) {
  const std::vector<std::string> own = {"--model-name-or-path=m", "--data-path", "d.jsonl", "--output-dir", "o",
                                        "--learning-rate",        "1e-5"};
  const auto imported = [&](std::vector<std::string> words) {
    words.insert(words.end(), own.begin(), own.end());
    return import_mini_trainer(words);
  };
  const std::string plain = imported({}).yaml;
  for (const std::vector<std::string>& launcher : std::vector<std::vector<std::string>>{
           {"torchrun", "--nproc-per-node=8", "train.py"},
           {"torchrun", "--standalone", "--nproc_per_node", "8", "/opt/mini/train.py"},
           {"OMP_NUM_THREADS=4", "torchrun", "--nproc-per-node", "8", "-m", "mini_trainer.train"},
           {"accelerate", "launch", "--num_processes", "8", "train.py"}}) {
    const Imported result = imported(launcher);
    EXPECT_EQ(result.yaml, plain);
    EXPECT_THAT(result.open, IsEmpty());
    EXPECT_THAT(result.lost, IsEmpty());
    EXPECT_THAT(result.translated, Contains(HasSubstr("inlay train run.yaml --processes 8, or with mpirun")));
  }
  EXPECT_EQ(imported({"python", "train.py"}).yaml, plain);
  EXPECT_EQ(imported({"python", "-m", "mini_trainer.train"}).yaml, plain);
  EXPECT_THAT(imported({"torchrun", "--nproc-per-node=gpu", "train.py"}).translated,
              Contains(HasSubstr("--processes auto")));
  EXPECT_THAT(user_error_of([] { import_mini_trainer({"--seed", "1", "odd"}); }), HasSubstr("'odd': expected"));
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
