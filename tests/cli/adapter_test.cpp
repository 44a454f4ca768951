#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "io/checkpoint.h"
#include "support/adapters.h"
#include "support/command.h"
#include "support/device_tensors.h"
#include "support/gpt_oss_checkpoint.h"

// Adapters as a user meets them: trained from YAML, evaluated, gone on from, merged; and what can go wrong.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

const fs::path golden = source_folder() / "tests/golden/models";

class CliAdapter : public ::testing::TestWithParam<Device> {
 protected:
  CliAdapter() { use(golden / "llama_llama3_tied"); }

  void use(const fs::path& model) {
    fs::remove_all(folder / "base");
    fs::copy(model, folder / "base");
    for (const char* name : {"expected.json", "expected.safetensors"}) fs::remove(folder / "base" / name);
  }

  std::string device() const { return std::string(name_of(GetParam())); }
  std::string path(const std::string& name) const { return (folder / name).string(); }

  CommandResult train(const std::string& output, const std::string& more, const std::vector<std::string>& words = {}) {
    folder.write(output + ".yaml",
                 "base_model: " + path("base") + "\noutput_dir: " + path(output) +
                     "\ndatasets: [{path: " + path("base/data.jsonl") +
                     "}]\nlearning_rate: 1.0e-2\nsequence_len: 64\nmicro_batch_size: 2\nsample_packing: false\n"
                     "gradient_accumulation_steps: 2\nmax_steps: 6\ndeterministic: true\ndtype: fp32\ndevice: " +
                     device() + "\n" + more);
    std::vector<std::string> arguments = {"train", path(output + ".yaml")};
    arguments.insert(arguments.end(), words.begin(), words.end());
    return inlay(arguments);
  }

  CommandResult merge(const std::string& adapter, const std::string& output, std::vector<std::string> words = {}) {
    words.insert(words.begin(), {"merge", path("base"), path(adapter), path(output)});
    return inlay(words);
  }

  // Of a model, or of the base with an adapter.
  double loss(const std::string& model, const std::string& adapter = "") const {
    std::vector<std::string> arguments = {"eval",     path(model), "--data", path("base/data.jsonl"),
                                          "--device", device(),    "--json", "--quiet"};
    if (!adapter.empty()) arguments.insert(arguments.end(), {"--adapter", path(adapter)});
    const CommandResult result = inlay(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out).at("loss");
  }

  std::set<std::string> names(const std::string& of) const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder / of)) found.insert(entry.path().filename());
    return found;
  }

  std::string tensors(const std::string& of) const { return read_text(folder / of / "adapter_model.safetensors"); }

  nlohmann::json summary(const std::string& of) const {
    return nlohmann::json::parse(read_text(folder / of / "summary.json"));
  }

  // In memory where there is such a folder: waiting for a disk would take most of the time.
  std::optional<Setting> in_memory =
      fs::is_directory("/dev/shm") ? std::optional<Setting>(std::in_place, "TMPDIR", "/dev/shm") : std::nullopt;
  TempFolder folder;
};

const std::string lora = "adapter: lora\nlora_r: 4\nlora_alpha: 8\nlora_target_linear: true\n";

TEST_P(CliAdapter, LeavesWhatPeftReadsAndNoModel) {
  folder.write("base/tokenizer_config.json", "{}");
  const CommandResult result = train("run", lora);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("adapter: rank 4 on 14 matrices over fp32, 5,568 trainable parameters"));
  EXPECT_THAT(result.err, HasSubstr("the adapter is in"));
  EXPECT_EQ(names("run"),
            (std::set<std::string>{"README.md", "adapter_config.json", "adapter_model.safetensors", "config.yaml",
                                   "metrics.jsonl", "summary.json", "tokenizer_config.json"}));
  EXPECT_EQ(summary("run").at("trainable_parameters"), 5568);
  EXPECT_LT(loss("base", "run"), loss("base") - 0.5);
}

// The numbers that were trained with, whatever they were held in.
TEST_P(CliAdapter, MergedItIsTheSameModel) {
  for (const std::string how :
       {"", "lora_dropout: 0.2\n", "peft_use_dora: true\n", "peft_use_rslora: true\n", "load_in_4bit: true\n",
        "load_in_8bit: true\n", "load_in_4bit: true\npeft_use_dora: true\n",
        "lora_modules_to_save: [embed_tokens]\n"}) {
    SCOPED_TRACE(how);
    const CommandResult trained = train("run", lora + how);
    ASSERT_EQ(trained.code, 0) << trained.err;
    const CommandResult merged = merge("run", "merged");
    ASSERT_EQ(merged.code, 0) << merged.err;
    EXPECT_THAT(merged.err, HasSubstr("merged: 14 matrices; the weights hold 100.00 % of what was learned"));
    EXPECT_NEAR(loss("merged"), loss("base", "run"), 1e-5);
    EXPECT_TRUE(names("merged").contains("config.json"));
    EXPECT_FALSE(names("merged").contains("adapter_config.json"));
    fs::remove_all(folder / "run");
    fs::remove_all(folder / "merged");
  }
}

TEST_P(CliAdapter, MergingSaysWhatRoundingLoses) {
  ASSERT_EQ(train("run", lora, {"--learning_rate", "1e-5"}).code, 0);
  const CommandResult rounded = merge("run", "rounded", {"--dtype", "bf16"});
  ASSERT_EQ(rounded.code, 0) << rounded.err;
  EXPECT_THAT(rounded.err, Not(HasSubstr("rounding errors of 0.00 %")));
  const CommandResult exact = merge("run", "exact", {"--dtype", "fp32"});
  ASSERT_EQ(exact.code, 0) << exact.err;
  EXPECT_THAT(exact.err, HasSubstr("rounding errors of 0.00 %"));
  const io::Checkpoint model(folder / "rounded");
  for (const std::string& name : model.names()) EXPECT_EQ(model.find(name)->dtype, DType::bf16) << name;
}

TEST_P(CliAdapter, ResumesBitForBit) {
  for (const std::string how :
       {"", "lora_dropout: 0.2\n", "peft_use_dora: true\nlora_dropout: 0.2\n", "load_in_4bit: true\n",
        "load_in_8bit: true\n", "lora_modules_to_save: [embed_tokens]\n", "lora_init: pissa\n",
        "lora_init: pissa\nload_in_8bit: true\n"}) {
    for (const std::string dtype : {"fp32", "bf16"}) {
      SCOPED_TRACE(how + dtype);
      const std::string keys = lora + "save_steps: 2\n" + how;
      ASSERT_EQ(train("run", keys, {"--dtype", dtype}).code, 0);
      const std::string whole = tensors("run");
      for (const char* name : {"checkpoint-6", "checkpoint-4", "summary.json", "adapter_model.safetensors"}) {
        fs::remove_all(folder / "run" / name);
      }
      EXPECT_FALSE(names("run/checkpoint-2").contains("model.safetensors"));
      const CommandResult resumed = train("run", keys, {"--resume", "--dtype", dtype});
      ASSERT_EQ(resumed.code, 0) << resumed.err;
      EXPECT_TRUE(tensors("run") == whole);
      fs::remove_all(folder / "run");
    }
  }
}

TEST_P(CliAdapter, ResumesAsTheSameAdapterOnly) {
  ASSERT_EQ(train("run", lora + "save_steps: 2\n").code, 0);
  fs::remove_all(folder / "run/summary.json");
  const auto resumed = [&](const std::vector<std::string>& words) {
    std::vector<std::string> arguments = {"--resume", "--max_steps", "8"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    const CommandResult result = train("run", lora + "save_steps: 2\n", arguments);
    EXPECT_EQ(result.code, 2);
    return result.err;
  };
  EXPECT_THAT(resumed({"--lora_alpha", "16"}),
              HasSubstr("the run has lora_r 4, lora_alpha 8, a base in fp32, but now it is lora_r 4, lora_alpha 16"));
  EXPECT_THAT(resumed({"--load_in_4bit", "true"}), HasSubstr("a base in nf4"));
  EXPECT_THAT(
      resumed({"--adapter", "none", "--lora_r", "auto", "--lora_alpha", "auto", "--lora_target_linear", "false"}),
      HasSubstr("but now it is no adapter"));
}

TEST_P(CliAdapter, ResumesWithTheSameTargetsOnly) {
  const auto keys = [](const std::string& targets) {
    return "adapter: lora\nlora_r: 4\nlora_alpha: 8\nsave_steps: 2\nlora_target_modules: " + targets + "\n";
  };
  ASSERT_EQ(train("run", keys("[q_proj, v_proj, o_proj]")).code, 0);
  // Fewer; fewer of what shares an input; more; another one; and a module that is saved whole.
  for (const std::string now : {"[q_proj, v_proj]", "[q_proj, o_proj]", "[q_proj, v_proj, o_proj, down_proj]",
                                "[q_proj, k_proj, o_proj]", "[q_proj, v_proj, o_proj]\nlora_modules_to_save: [norm]"}) {
    SCOPED_TRACE(now);
    const CommandResult resumed = train("run", keys(now), {"--resume", "--max_steps", "8"});
    EXPECT_EQ(resumed.code, 2);
    EXPECT_THAT(resumed.err, HasSubstr("resume with the run's own lora_target_linear, lora_target_modules, "));
    EXPECT_THAT(resumed.err, Not(HasSubstr("optimizer_state")));
  }
}

// The base beneath PiSSA is another than beneath the rest: going on with the other one would be another model.
TEST_P(CliAdapter, ResumesFromTheSameBeginningOnly) {
  const std::string inits[] = {"gaussian", "pissa", "free"};
  const auto keys = [](const std::string& init) {
    return lora + "save_steps: 2\nlora_init: " + init +
           (init == "free" ? "\nlora_free_ratio: 0.5\nosft: {cache: off, calibration: {samples: 2, length: 16}}\n"
                           : "\n");
  };
  for (const std::string& begun : inits) {
    ASSERT_EQ(train("run", keys(begun)).code, 0);
    for (const std::string& now : inits) {
      if (now == begun) continue;
      SCOPED_TRACE(begun + " resumed as " + now);
      const CommandResult resumed = train("run", keys(now), {"--resume", "--max_steps", "8"});
      EXPECT_EQ(resumed.code, 2);
      EXPECT_THAT(resumed.err, HasSubstr("lora_init " + (now == "gaussian" ? begun : now)));
      EXPECT_THAT(resumed.err, HasSubstr("resume with the run's own adapter keys"));
    }
    fs::remove_all(folder / "run");
  }
}

TEST_P(CliAdapter, GoesOnFromAnAdapter) {
  ASSERT_EQ(train("first", lora).code, 0);
  const std::string on = "adapter: lora\nlora_model_dir: " + path("first") + "\n";
  const CommandResult second = train("second", on);
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_LT(loss("base", "second"), loss("base", "first") - 0.1);
  // A checkpoint of an adapter is an adapter.
  ASSERT_EQ(train("third", on + "save_steps: 3\n").code, 0);
  EXPECT_EQ(tensors("third"), tensors("second"));
  EXPECT_NEAR(loss("base", "third/checkpoint-6"), loss("base", "second"), 1e-6);
  EXPECT_THAT(train("fourth", on + "lora_r: 8\n").err, HasSubstr("lora_r: 8, but the adapter in lora_model_dir has 4"));
}

TEST_P(CliAdapter, SaysWhereItGoesOnOverAnotherBase) {
  ASSERT_EQ(train("first", lora + "load_in_4bit: true\n").code, 0);
  const std::string on = "adapter: lora\nlora_model_dir: " + path("first") + "\n";
  const CommandResult other = train("second", on);
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.err, HasSubstr("adapter: trained over nf4 (load_in_4bit: true) so far, from here on over fp32\n"));
  const CommandResult same = train("third", on + "load_in_4bit: true\n");
  ASSERT_EQ(same.code, 0) << same.err;
  EXPECT_THAT(same.err, Not(HasSubstr("adapter: trained over")));
}

// Of an adapter that PEFT has made, with what PEFT computed for it.
TEST_P(CliAdapter, GradientsAreThoseOfTheAdapter) {
  for (const std::string name : {"llama", "llama_dora", "qwen3_embeddings", "qwen3_moe_experts"}) {
    SCOPED_TRACE(name);
    const fs::path adapter = adapter_fixture(name), out = folder / (name + ".safetensors");
    const fs::path base = base_of(adapter);
    const CommandResult result = inlay({"grad", base.string(), "--adapter", adapter.string(), "--data",
                                        base / "data.jsonl", "--device", device(), "--logits", "--out", out});
    ASSERT_EQ(result.code, 0) << result.err;
    const io::SafetensorsFile ours(out), theirs(adapter / "expected.safetensors");
    int checked = 0;
    for (const std::string& tensor : theirs.names()) {
      if (!tensor.starts_with("grad.") && !tensor.starts_with("logits.")) continue;
      const ConstView expected = theirs.tensor(tensor), got = ours.tensor(tensor);
      ASSERT_EQ(got.size(), expected.size()) << tensor;
      double most = 0, off = 0;
      for (std::int64_t i = 0; i < got.size(); ++i) {
        most = std::max(most, std::abs(double{expected.as<float>()[i]}));
        off = std::max(off, std::abs(double{expected.as<float>()[i]} - got.as<float>()[i]));
      }
      EXPECT_LE(off, 2e-5 * most) << tensor;
      ++checked;
    }
    EXPECT_GT(checked, 4);
    for (const std::string& tensor : ours.names()) EXPECT_THAT(tensor, Not(HasSubstr("grad.model.")));
  }
}

TEST_P(CliAdapter, ThePlanIsTheRun) {
  for (const std::string how : {"", "load_in_4bit: true\nlora_dropout: 0.1\n", "load_in_8bit: true\n",
                                "peft_use_dora: true\n", "lora_modules_to_save: [embed_tokens]\n"}) {
    SCOPED_TRACE(how);
    const CommandResult trained = train("run", lora + how);
    ASSERT_EQ(trained.code, 0) << trained.err;
    const CommandResult plan = inlay({"plan", path("run.yaml"), "--json"});
    ASSERT_EQ(plan.code, 0) << plan.err;
    const auto planned = nlohmann::json::parse(plan.out);
    EXPECT_EQ(summary("run").at("planned_device_peak_bytes"), planned.at("device_peak_bytes"));
    EXPECT_EQ(summary("run").at("trainable_parameters"), planned.at("trainable_parameters"));
    EXPECT_LE(summary("run").at("device_peak_bytes").get<double>(), planned.at("device_peak_bytes").get<double>());
    fs::remove_all(folder / "run");
  }
  EXPECT_THAT(inlay({"plan", path("run.yaml")}).out, HasSubstr("adapter: rank 4 on 14 matrices over fp32, 1 whole, "));
}

// So deep that weights take the room, not activations; there need be none to see that.
TEST_P(CliAdapter, WhereItDoesNotFitTheAdviceIsAnAdapters) {
  auto config = nlohmann::json::parse(read_text(folder / "base/config.json"));
  config["num_hidden_layers"] = 200;
  config["intermediate_size"] = 1024;  // more than a GPU's workspace for products takes
  folder.write("base/config.json", config.dump());
  const auto said = [&](const std::string& more) {
    const CommandResult result =
        train("run", lora + "memory: {device: 0.002}\n" + more, {"--sequence_len", "8", "--micro_batch_size", "1"});
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr("lower lora_r or sequence_len, or name fewer targets"));
    EXPECT_THAT(result.err, Not(HasSubstr("osft")));
    return result.err;
  };
  EXPECT_THAT(said(""), HasSubstr("load_in_4bit: true"));
  EXPECT_THAT(said("load_in_4bit: true\n"), Not(HasSubstr("load_in_4bit")));
}

TEST_P(CliAdapter, WrongKeysAreNamedBeforeAnythingIsDone) {
  const std::string targets = "adapter: lora\nlora_r: 4\nlora_alpha: 8\nlora_target_modules: ";
  const auto refused = [&](const std::string& keys) {
    const CommandResult result = train("run", keys);
    EXPECT_EQ(result.code, 2) << keys;
    EXPECT_THAT(result.err, Not(HasSubstr("documents")));  // no data was read
    EXPECT_FALSE(fs::exists(folder / "run"));
    return result.err;
  };
  EXPECT_THAT(refused(targets + "[q_prj, v_proj, nothing]\n"),
              HasSubstr(path("run.yaml") + ": lora_target_modules: this model has no q_prj (did you mean q_proj?), "
                                           "nothing; it has q_proj, k_proj, v_proj"));
  EXPECT_THAT(refused("adapter: lora\nlora_r: 100\nlora_alpha: 8\nlora_target_modules: [q_proj]\n"),
              HasSubstr("lora_r: 100 is more than model.layers.0.self_attn.q_proj can have"));
  EXPECT_THAT(refused(lora + "attention: {score: \"softcap(20)\"}\n"), HasSubstr("cannot carry a rule of attention"));
  EXPECT_THAT(refused("adapter: lora\nlora_model_dir: " + path("base") + "\n"), HasSubstr("not an adapter"));
  use(golden / "llama_linear_sharded");
  EXPECT_THAT(refused(targets + "[q_proj, lm_head]\npeft_use_dora: true\n"),
              HasSubstr("the head (lm_head) cannot train with DoRA"));
}

TEST_P(CliAdapter, WhatIsThereIsNotOverwritten) {
  ASSERT_EQ(train("run", lora).code, 0);
  ASSERT_EQ(merge("run", "merged").code, 0);
  EXPECT_THAT(merge("run", "merged").err, HasSubstr("already exists"));
  // Somebody's adapter, which no run of ours has left there.
  fs::create_directories(folder / "theirs");
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    fs::copy(folder / "run" / name, folder / "theirs" / name);
  }
  const CommandResult over = train("theirs", lora);
  EXPECT_EQ(over.code, 2);
  EXPECT_THAT(over.err, HasSubstr("already holds an adapter"));
}

TEST_P(CliAdapter, AnAdapterIsNoModel) {
  ASSERT_EQ(train("run", lora).code, 0);
  const CommandResult eval = inlay({"eval", path("run"), "--data", path("base/data.jsonl")});
  EXPECT_EQ(eval.code, 2);
  EXPECT_THAT(eval.err, HasSubstr("holds an adapter, not a model"));
  EXPECT_THAT(inlay({"eval", path("base"), "--adapter", path("base"), "--data", path("base/data.jsonl")}).err,
              HasSubstr("not an adapter: there is no adapter_config.json"));
}

TEST_P(CliAdapter, WhoTalksWithAnAdapterTalksWithItsModel) {
  ASSERT_EQ(train("run", lora).code, 0);
  const auto said = [&](const std::string& model, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"generate", model, "--device", device(), "--ids", "1,2", "--max-new-tokens", "8"});
    return inlay(more);
  };
  const CommandResult whole = said(path("base"), {"--adapter", path("run")}), alone = said(path("run"));
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(alone.out, whole.out);
  EXPECT_NE(alone.out, said(path("base")).out) << "the base by itself says something else";
  EXPECT_THAT(alone.err, HasSubstr(path("run") + " is an adapter of " + path("base") + "\n"));
  EXPECT_THAT(said(path("run"), {"--quiet"}).err, Not(HasSubstr("is an adapter of")));
  EXPECT_THAT(said(path("run"), {"--adapter", path("run")}).err, HasSubstr("holds an adapter, and so does"));
  const std::string config = read_text(folder / "run/adapter_config.json");
  const auto with_base = [&](const std::string& base) {
    nlohmann::json changed = nlohmann::json::parse(config);
    changed["base_model_name_or_path"] = base.empty() ? nlohmann::json(nullptr) : nlohmann::json(base);
    folder.write("run/adapter_config.json", changed.dump());
    const CommandResult result = said(path("run"));
    EXPECT_EQ(result.code, 2) << base;
    return result.err;
  };
  EXPECT_THAT(with_base(path("elsewhere")),
              HasSubstr("is an adapter of " + path("elsewhere") + ", but there is no such folder; give the model's " +
                        "folder, and --adapter " + path("run")));
  EXPECT_THAT(with_base(""), HasSubstr("does not say whose adapter it is (base_model_name_or_path)"));
  EXPECT_THAT(with_base("org/none"), HasSubstr("org/none: no such model, neither as a path nor in the Hugging Face"));
}

TEST_P(CliAdapter, AnotherBaseIsRefused) {
  ASSERT_EQ(train("run", lora).code, 0);
  std::string weights = read_text(folder / "base/model.safetensors");
  weights[weights.size() - 3] ^= 8;
  folder.write("base/model.safetensors", weights);
  const std::string message = "was trained on another model than";
  EXPECT_THAT(merge("run", "merged").err, HasSubstr(message));
  EXPECT_FALSE(fs::exists(folder / "merged"));
  EXPECT_THAT(inlay({"eval", path("base"), "--adapter", path("run"), "--data", path("base/data.jsonl")}).err,
              HasSubstr(message));
  EXPECT_THAT(train("next", "adapter: lora\nlora_model_dir: " + path("run") + "\n").err, HasSubstr(message));
}

TEST_P(CliAdapter, ADamagedAdapterIsNotMerged) {
  ASSERT_EQ(train("run", lora).code, 0);
  const std::string whole = tensors("run");
  const std::size_t entries = folder.entry_count();
  const auto refused = [&](const std::string& content) {
    folder.write("run/adapter_model.safetensors", content);
    const CommandResult result = merge("run", "merged");
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(folder.entry_count(), entries);  // nothing half-made is left
    return result.err;
  };
  EXPECT_THAT(refused(whole.substr(0, whole.size() - 100)), HasSubstr("adapter_model.safetensors"));
  EXPECT_THAT(refused(whole.substr(0, 5)), HasSubstr("adapter_model.safetensors"));
  std::string renamed = whole;
  renamed.replace(renamed.find("q_proj.lora_A"), 13, "x_proj.lora_A");
  EXPECT_THAT(refused(renamed), HasSubstr("missing: base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"));
}

// Experts as GPT-OSS brings them are never made anything else, whatever becomes of the other matrices.
TEST_P(CliAdapter, Mxfp4ExpertsStayAsTheyAre) {
  const GptOssCheckpoint checkpoint(GptOssCheckpoint::Form::mxfp4);
  use(checkpoint.folder.path());
  nlohmann::json ids = nlohmann::json::array();
  for (int i = 0; i < 24; ++i) ids.push_back(i * 37 % 96);
  folder.write("base/data.jsonl", nlohmann::json({{"input_ids", ids}, {"labels", ids}}).dump() + "\n");
  const std::string experts = "lora_target_parameters: [experts.gate_up_proj, experts.down_proj]\n";
  for (const std::string how : {"", "load_in_4bit: true\n"}) {
    for (const std::string& more : {std::string(), experts}) {
      SCOPED_TRACE(how + more);
      const CommandResult trained = train("run", lora + how + more);
      ASSERT_EQ(trained.code, 0) << trained.err;
      EXPECT_THAT(trained.err,
                  HasSubstr(how.empty() ? "over fp32, experts over mxfp4" : "over nf4, experts over mxfp4"));
      // Merged into fp32 nothing is rounded; the experts' numbers are those of the file.
      const CommandResult merged = merge("run", "merged", {"--dtype", "fp32"});
      ASSERT_EQ(merged.code, 0) << merged.err;
      EXPECT_NEAR(loss("merged"), loss("base", "run"), 1e-5);
      if (more.empty()) {
        ASSERT_EQ(merge("run", "packed").code, 0);
        const io::Checkpoint before(folder / "base"), after(folder / "packed");
        EXPECT_EQ(before.names(), after.names());
        for (const std::string& name : before.names()) {
          if (name.find("experts") == std::string::npos) continue;
          EXPECT_EQ(std::memcmp(before.tensor(name).data(), after.tensor(name).data(), before.tensor(name).bytes()), 0)
              << name;
        }
      }
      for (const char* name : {"run", "merged", "packed"}) fs::remove_all(folder / name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, CliAdapter, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
