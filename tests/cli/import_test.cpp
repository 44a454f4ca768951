#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "support/command.h"

// Configurations with the keys that axolotl's public examples have, as people bring them: each comes to a plan and a
// step, or to one message with all that stands in its way.
namespace inlay::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CliImport : public ::testing::Test {
 protected:
  void SetUp() override {
    const CommandResult made = inlay({"init", folder / "base", "--preset", "tiny"});
    ASSERT_EQ(made.code, 0) << made.err;
    std::string rows, chats;
    for (int i = 0; i < 40; ++i) {
      rows += R"({"instruction": "say )" + std::to_string(i) + R"(", "output": "yes"})" + "\n";
      chats += R"({"conversations": [{"from": "human", "value": "say )" + std::to_string(i) +
               R"("}, {"from": "gpt", "value": "yes"}]})" + "\n";
    }
    folder.write("rows.jsonl", rows);
    folder.write("chats.jsonl", chats);
  }

  // Gives it to plan and to train as it is, and once more translated.
  void reaches_a_step(const std::string& name, const std::string& yaml, const std::string& note) {
    folder.write(name + ".yml", yaml);
    const std::vector<std::string> small = {"--device", "cpu", "--max_steps", "2"};
    std::vector<std::string> command = {"plan", folder / (name + ".yml")};
    command.insert(command.end(), small.begin(), small.end());
    const CommandResult plan = inlay(command);
    EXPECT_EQ(plan.code, 0) << name << ": " << plan.err;
    EXPECT_THAT(plan.err, HasSubstr(note)) << name;
    command[0] = "train";
    const CommandResult trained = inlay(command);
    EXPECT_EQ(trained.code, 0) << name << ": " << trained.err;
    EXPECT_THAT(trained.err, HasSubstr("done: 2 steps")) << name;
    const CommandResult imported = inlay({"import", folder / (name + ".yml"), "-o", folder / (name + ".yaml")});
    EXPECT_EQ(imported.code, 0) << name << ": " << imported.err;
    EXPECT_THAT(imported.err, AllOf(HasSubstr("not needed here:"), Not(HasSubstr("still to do")))) << name;
    command[0] = "plan";
    command[1] = folder / (name + ".yaml");
    EXPECT_EQ(inlay(command).code, 0) << name;
  }

  static std::string common(const std::string& name) {
    return "base_model: base\noutput_dir: ./outputs/" + name +
           "\nlearning_rate: 0.0002\nlr_scheduler: cosine\nmicro_batch_size: 2\ngradient_accumulation_steps: 2\n"
           "num_epochs: 1\nbf16: auto\ntf32: false\ngradient_checkpointing: true\nresume_from_checkpoint:\n"
           "logging_steps: 1\nwandb_project:\nwandb_entity:\nwandb_watch:\nwandb_name:\nwandb_log_model:\n"
           "warmup_ratio: 0.1\nweight_decay: 0.0\nloraplus_lr_ratio:\n";
  }

  TempFolder folder;
};

TEST_F(CliImport, WhatAxolotlsExamplesHaveReachesAStep) {
  reaches_a_step(
      "lora",
      common("lora") +
          "model_type: LlamaForCausalLM\ntokenizer_type: LlamaTokenizer\nload_in_8bit: true\nload_in_4bit: false\n"
          "datasets:\n  - path: rows.jsonl\n    type: alpaca\ndataset_prepared_path:\nval_set_size: 0.05\n"
          "sequence_len: 512\nsample_packing: true\neval_sample_packing: false\npad_to_sequence_len: true\n"
          "adapter: lora\nlora_model_dir:\nlora_r: 8\nlora_alpha: 16\nlora_dropout: 0.05\n"
          "lora_target_linear: true\noptimizer: adamw_bnb_8bit\nattn_implementation: flash_attention_2\n"
          "evals_per_epoch: 4\nsaves_per_epoch: 1\n",
      "optimizer: adamw_bnb_8bit is read as optimizer_state: 8bit");
  reaches_a_step(
      "qlora",
      common("qlora") +
          "strict: false\nload_in_4bit: true\nadapter: qlora\nlora_r: 4\nlora_alpha: 8\n"
          "lora_target_modules: [q_proj, v_proj]\ndatasets:\n  - path: chats.jsonl\n    type: chat_template\n"
          "    split: train[:50%]\n    field_messages: conversations\n    message_property_mappings:\n"
          "      role: from\n      content: value\nchat_template: chatml\neot_tokens: [<|im_end|>]\n"
          "special_tokens: {pad_token: <|pad|>}\nsequence_len: 256\nval_set_size: 0.0\nevals_per_epoch:\n"
          "plugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n"
          "  - axolotl.integrations.liger.LigerPlugin\nliger_rope: true\nliger_rms_norm: true\n"
          "optimizer: adamw_torch_fused\ngradient_checkpointing_kwargs:\n  use_reentrant: false\n"
          "fsdp:\n  - full_shard\n  - auto_wrap\nfsdp_config:\n  fsdp_offload_params: true\n"
          "  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\nsaves_per_epoch: 1\n"
          "tokens: [<|im_start|>, <|im_end|>]\nlora_modules_to_save: [embed_tokens, lm_head]\n",
      "fsdp_config: … is read as parallel.zero: 3");
  reaches_a_step("full",
                 common("full") +
                     "trust_remote_code: true\ndatasets:\n  - path: rows.jsonl\n    type: alpaca\n"
                     "test_datasets:\n  - path: json\n    data_files: rows.jsonl\n    split: train[-5:]\n"
                     "sequence_len: 5_12\nsample_packing: false\noptimizer: paged_adamw_8bit\n"
                     "deepspeed: deepspeed_configs/zero2.json\neval_strategy: epoch\nsave_strategy: 'no'\n"
                     "flash_attention: true\ntrain_on_inputs: false\ngroup_by_length: false\n",
                 "parallel.zero: 2");
}

TEST_F(CliImport, WhatCannotBeIsOneMessage) {
  folder.write("vision.yml",
               common("vision") +
                   "processor_type: AutoProcessor\nskip_prepare_dataset: true\nremove_unused_columns: false\n"
                   "datasets:\n  - path: rows.jsonl\n    typ: alpaca\noptimizer: adafactor\nfp16: true\n"
                   "sequence_len: many\n");
  const CommandResult plan = inlay({"plan", folder / "vision.yml"});
  EXPECT_EQ(plan.code, 2);
  for (const char* part :
       {"5 problems:", "processor_type: only text", "did you mean type?", "expected adamw, muon or schedule_free_adamw",
        "fp16 is not supported", "line 29: sequence_len: expected"}) {
    EXPECT_THAT(plan.err, HasSubstr(part));
  }
}

TEST_F(CliImport, PathsAreThoseOfTheFile) {
  std::filesystem::create_directories(folder / "configs");
  folder.write("configs/rows.jsonl", "{\"text\": \"only here\"}\n");
  folder.write("configs/run.yaml",
               "base_model: ../base\ndatasets: [rows.jsonl]\noutput_dir: ../out\nlearning_rate: 1\nmax_steps: 1\n"
               "device: cpu\ndataset_prepared_path: 'off'\n");
  const CommandResult trained = inlay({"train", folder / "configs/run.yaml"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(std::filesystem::exists(folder / "out/config.json"));
  const CommandResult data =
      inlay({"data", folder / "configs/run.yaml", "--json", "--datasets", (folder / "rows.jsonl").string()});
  EXPECT_EQ(nlohmann::json::parse(data.out).at("documents"), 40);
  // What the run has written about itself holds in any folder.
  EXPECT_EQ(inlay({"plan", folder / "out/config.yaml"}).code, 0);
}

TEST_F(CliImport, WhatIsMissingIsNamedWithItsFolder) {
  std::filesystem::create_directories(std::filesystem::path(folder / "conf"));
  const auto config = [&](const std::string& base, const std::string& data) {
    folder.write("conf/run.yaml", "base_model: " + base + "\ndatasets: [" + data +
                                      "]\noutput_dir: out\nlearning_rate: 1e-3\nmax_steps: 1\nsequence_len: 64\n"
                                      "chat_template: chatml\n");
    return (folder / "conf/run.yaml").string();
  };
  const std::string conf = (folder / "conf").string();
  EXPECT_EQ(
      inlay({"plan", config("../bse", "../rows.jsonl")}).err,
      "inlay: " + conf + "/run.yaml, line 1: base_model: " + (folder / "bse").string() + ": no such model folder\n");
  const std::string file = config("../base", "../rowz.jsonl");
  EXPECT_THAT(inlay({"train", file, "--device", "cpu"}).err,
              HasSubstr("run.yaml, line 2: datasets: " + (folder / "rowz.jsonl").string() + ": no such file\n"));
  const CommandResult plan = inlay({"plan", file, "--device", "cpu"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.err, HasSubstr("warning: " + conf + "/run.yaml, line 2: datasets: " +
                                  (folder / "rowz.jsonl").string() + ": no such file\n"));
  EXPECT_THAT(plan.out,
              HasSubstr("(from the configuration, because " + (folder / "rowz.jsonl").string() + " does not exist)"));
}

// Whoever has made several mistakes hears of them at once, before anything is read or downloaded.
TEST_F(CliImport, AllThatIsMissingIsOneMessage) {
  const std::string file = folder.write("run.yaml",
                                        "base_model: bse\ndatasets:\n  - a.jsonl\n  - path: b.jsonl\n    type: alpaca\n"
                                        "  - path: org/none\n  - path: nowhere/\n"
                                        "  - {path: rows.jsonl, chat_template: qwenn3}\n"
                                        "test_datasets: [t.jsonl]\nchat_template: lama3\noutput_dir: out\n"
                                        "learning_rate: 0\nmax_steps: 1\nkd_trainer: true\nkd_teacher: none\n");
  for (const char* command : {"train", "data", "plan"}) {
    const CommandResult result = inlay({command, file, "--device", "cpu"});
    EXPECT_EQ(result.code, 2) << command;
    for (const char* part :
         {"10 problems:", "run.yaml, line 1: base_model: ", "bse: no such model folder\n",
          "run.yaml, line 3: datasets: ", "a.jsonl: no such file\n",
          "run.yaml, line 4: datasets: ", "run.yaml, line 6: datasets: org/none: no such dataset",
          "run.yaml, line 7: datasets: ", "nowhere/: no such folder\n",
          "run.yaml, line 8: datasets.chat_template: 'qwenn3' is neither", "; did you mean qwen3?\n",
          "run.yaml, line 9: test_datasets: ", "run.yaml, line 10: chat_template: 'lama3' is neither",
          "; did you mean llama3?\n", "run.yaml, line 12: learning_rate: expected a number above 0, got 0\n",
          "run.yaml, line 15: kd_teacher: none: no such model folder"}) {
      EXPECT_THAT(result.err, HasSubstr(part)) << command;
    }
  }
}

// A shell never sees what is in a file.
TEST_F(CliImport, ATildeIsTheHomeFolder) {
  const CommandLimits home{.interrupt_when = {}, .interrupt = {}, .environment = {{"HOME", folder.path().string()}}};
  std::filesystem::create_directories(folder / "conf");
  folder.write("conf/run.yaml",
               "base_model: ~/base\ndatasets: [~/rows.jsonl]\noutput_dir: ~/out\nmax_steps: 1\n"
               "learning_rate: 1e-3\nsequence_len: 256\n");
  const CommandResult trained = inlay({"train", folder / "conf/run.yaml", "--device", "cpu"}, home);
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(std::filesystem::exists(folder / "out/model.safetensors"));
  const CommandResult other =
      inlay({"train", folder / "conf/run.yaml", "--device", "cpu", "--output_dir=~/other"}, home);
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_TRUE(std::filesystem::exists(folder / "other/model.safetensors"));
}

TEST_F(CliImport, TheOtherProgramMayBeNamed) {
  const std::string file =
      folder.write("a.yml", "base_model: m\ndatasets: [{path: d, type: alpaca}]\noutput_dir: o\nlearning_rate: 1\n");
  const CommandResult named = inlay({"import", "axolotl", file});
  EXPECT_EQ(named.code, 0) << named.err;
  EXPECT_EQ(named.out, inlay({"import", file}).out);
}

TEST_F(CliImport, PathsCountFromTheNewFile) {
  std::filesystem::create_directories(folder / "configs");
  std::filesystem::create_directories(folder / "else where");
  folder.write("a.yml",
               "base_model: base\nlearning_rate: 1e-3\noutput_dir: out\nsequence_len: 256\nchat_template: t.jinja\n"
               "datasets:\n  - path: rows.jsonl\n    type: alpaca\n  - path: json\n    data_files: [rows.jsonl]\n"
               "  - {path: 'chats*.jsonl', type: sharegpt}\n");
  folder.write("t.jinja", "{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}");
  const std::string moved = folder / "else where/run.yaml";
  const CommandResult imported = inlay({"import", folder / "a.yml", "-o", moved});
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_THAT(imported.err, AllOf(HasSubstr("datasets.path: rows.jsonl is ../rows.jsonl from the new file's folder"),
                                  HasSubstr("inlay plan '" + moved + "'\n"), Not(HasSubstr("still to do"))));
  const CommandResult plan = inlay({"plan", moved, "--device", "cpu"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("(from the data)"));
  // Beside the file nothing changes; without a file nobody knows; what is nowhere is said.
  ASSERT_EQ(inlay({"import", folder / "a.yml", "-o", folder / "b.yaml"}).code, 0);
  EXPECT_THAT(inlay({"plan", folder / "b.yaml", "--device", "cpu"}).out, HasSubstr("(from the data)"));
  EXPECT_THAT(
      inlay({"import", folder / "a.yml"}).err,
      HasSubstr("relative paths are relative to the folder that the new file is put into: base, t.jinja, rows.jsonl"));
  folder.write("c.yml", "base_model: base\nlearning_rate: 1\noutput_dir: o\ndatasets: [{path: gone.jsonl}]\n");
  EXPECT_THAT(inlay({"import", folder / "c.yml", "-o", folder / "configs/c.yaml"}).err,
              HasSubstr("datasets.path: gone.jsonl is not in "));
}

TEST_F(CliImport, TwoDashesThatAreMissingAreMissed) {
  const CommandResult result = inlay({"import", "mini_trainer", "--model-name-or-path", "m"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("inlay import mini_trainer -- --model-name-or-path ..."));
  EXPECT_THAT(inlay({"import", folder / "a.yml", "--outptu", "x"}).err, HasSubstr("did you mean --output?"));
}

TEST_F(CliImport, ACommandLineIsTranslated) {
  const CommandResult imported = inlay({"import", "mini_trainer", "--", "--model-name-or-path", folder / "base",
                                        "--data-path", folder / "rows.jsonl", "--output-dir", folder / "out",
                                        "--batch-size", "4", "--learning-rate=1e-3", "--max-tokens-per-gpu", "512"});
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_THAT(imported.err, Not(HasSubstr("still to do")));
  folder.write("run.yaml", imported.out);
  EXPECT_EQ(inlay({"plan", folder / "run.yaml"}).code, 0);
  EXPECT_EQ(inlay({"import", folder / "run.yaml", "-o", folder / "run.yaml"}).code, 2);
  EXPECT_THAT(inlay({"import", "mini_trainer"}).err, HasSubstr("after two dashes"));
}

}  // namespace
}  // namespace inlay::testing
