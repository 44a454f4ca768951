#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/device_tensors.h"
#include "support/small_run.h"

// Self-distillation on policy, as a user starts it.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class CliOnPolicy : public ::testing::TestWithParam<Device> {
 protected:
  CliOnPolicy() {
    const CommandResult made = inlay({"init", "--preset", "tiny", folder / "base"});
    EXPECT_EQ(made.code, 0) << made.err;
    std::string taught, rows;
    for (int i = 0; i < 12; ++i) {
      const auto row = [&](const std::string& answer) {
        return nlohmann::json({{"instruction", "Say " + std::to_string(i) + "."}, {"output", answer}}).dump() + "\n";
      };
      taught += row("xx");
      rows += row(std::string(static_cast<std::size_t>(i) + 1, 'y'));
    }
    // Random weights would never end an answer.
    folder.write("rows.jsonl", taught);
    train("taught", "learning_rate: 3.0e-3\n", {"--max_steps", "60"});
    folder.write("rows.jsonl", rows);
    fs::remove_all(folder / "base");
    fs::rename(folder / "taught", folder / "base");
  }

  // Keys of a run that learns predictions of what the model says, of the teacher of this name.
  std::string predictions_from(const std::string& teacher, int beta = 1) const {
    if (teacher != "another") {
      return "sdft: {enabled: true, on_policy: true, learn: predictions, max_new_tokens: 24, teacher: " + teacher +
             ", beta: " + std::to_string(beta) + "}\n";
    }
    const fs::path other = folder / "another";
    if (!fs::exists(other)) {
      const CommandResult made = inlay({"init", "--preset", "tiny", "--seed", "5", other});
      EXPECT_EQ(made.code, 0) << made.err;
    }
    return "kd_trainer: true\nkd_on_policy: true\nkd_max_new_tokens: 24\nkd_beta: " + std::to_string(beta) +
           "\nkd_teacher: " + other.string() + "\n";
  }

  void write_config(const std::string& name, const std::string& more) const {
    folder.write(name + ".yaml",
                 "base_model: " + (folder / "base").string() + "\noutput_dir: " + (folder / name).string() +
                     "\ndatasets: [{path: " + (folder / "rows.jsonl").string() +
                     "}]\nsequence_len: 256\nmicro_batch_size: 2\nmax_steps: 8\ndeterministic: true\ndtype: fp32\n"
                     "dataset_prepared_path: off\ndevice: " +
                     std::string(name_of(GetParam())) + "\n" + more);
  }
  std::vector<nlohmann::json> train(const std::string& name, const std::string& more,
                                    std::vector<std::string> arguments = {}) const {
    write_config(name, more);
    arguments.insert(arguments.begin(), {"train", folder / (name + ".yaml"), "--quiet"});
    const CommandResult result = inlay(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return SmallRun::records_of(read_text(folder / name / "metrics.jsonl"));
  }

  TempFolder folder;
};

// A model that hardly changes writes what it would have written before the first step, step after step.
TEST_P(CliOnPolicy, WritesWhatTheBaseModelWouldWhileItHardlyChanges) {
  const std::string greedy = "learning_rate: 1.0e-12\nsample_packing: false\nsdft: {enabled: true, temperature: 0, ";
  const auto before = train("before", greedy + "max_new_tokens: 16}\n");
  const auto during = train("during", greedy + "max_new_tokens: 16, on_policy: true}\n");
  const auto plain = train("plain", "learning_rate: 1.0e-12\nsample_packing: false\n");
  ASSERT_EQ(before.size(), 8u);
  ASSERT_EQ(during.size(), 8u);
  double rewritten = 0, apart = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    const double expected = before[i].at("loss");
    EXPECT_NEAR(during[i].at("loss").get<double>(), expected, 1e-6 * expected) << i;
    EXPECT_EQ(during[i].at("valid_tokens"), before[i].at("valid_tokens")) << i;
    rewritten += during[i].at("rewritten").get<double>() / 8;
    apart += std::abs(plain[i].at("loss").get<double>() - expected);
    EXPECT_FALSE(before[i].contains("rewritten"));
  }
  EXPECT_GT(rewritten, 0.2);
  EXPECT_GT(apart, 1) << "nothing was written";
}

// What is drawn depends on the weights and the step alone: a run that was stopped goes on as if it had not been. Its
// answers are packed by their own lengths.
TEST_P(CliOnPolicy, ResumesToTheLastBit) {
  const std::string sampled =
      "learning_rate: 3.0e-3\nsave_steps: 4\nsdft: {enabled: true, on_policy: true, max_new_tokens: 16}\n";
  const auto whole = train("whole", sampled);
  train("broken", sampled);
  fs::remove_all(folder / "broken/checkpoint-8");
  fs::remove(folder / "broken/summary.json");
  fs::remove(folder / "broken/model.safetensors");
  const auto resumed = train("broken", sampled, {"--resume"});
  ASSERT_EQ(resumed.size(), whole.size());
  double rewritten = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(resumed[i].at("loss"), whole[i].at("loss")) << i;
    rewritten += whole[i].at("rewritten").get<double>() / 8;
  }
  EXPECT_GT(rewritten, 0.2);
  EXPECT_EQ(read_text(folder / "broken/model.safetensors"), read_text(folder / "whole/model.safetensors"));
}

// The same of predictions; and a step takes what was planned, of all that the teacher sees.
TEST_P(CliOnPolicy, PredictionsAreLearnedPlannedAndResumed) {
  for (const std::string from : {"base", "itself", "another"}) {
    const std::string keys = "learning_rate: 1.0e-3\nsave_steps: 4\n" + predictions_from(from);
    const std::string metric = from == "another" ? "kd_loss" : "divergence";
    const auto whole = train("whole-" + from, keys);
    const std::string name = "broken-" + from;
    train(name, keys);
    fs::remove_all(folder / name / "checkpoint-8");
    fs::remove(folder / name / "summary.json");
    fs::remove(folder / name / "model.safetensors");
    const auto resumed = train(name, keys, {"--resume"});
    ASSERT_EQ(whole.size(), 8u);
    ASSERT_EQ(resumed.size(), 8u);
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(resumed[i].at("loss"), whole[i].at("loss")) << i;
      EXPECT_GT(whole[i].at(metric).get<double>(), 0) << i;
      EXPECT_FALSE(whole[i].contains("rewritten"));
    }
    EXPECT_EQ(read_text(folder / name / "model.safetensors"),
              read_text(folder / ("whole-" + from) / "model.safetensors"));
    const auto summary = nlohmann::json::parse(read_text(folder / ("whole-" + from) / "summary.json"));
    EXPECT_LE(summary.at("device_peak_bytes").get<std::int64_t>(),
              summary.at("planned_device_peak_bytes").get<std::int64_t>());
  }
}

// Towards what it says when it is shown the answers: to learn them, without having been given one as a text.
TEST_P(CliOnPolicy, PredictionsBringTheModelNearerToItsTeacher) {
  for (const auto& [from, metric] : {std::pair{"base", "divergence"}, {"another", "kd_loss"}}) {
    const auto steps =
        train(std::string("run-") + from, "learning_rate: 2.0e-3\n" + predictions_from(from, 0), {"--max_steps", "40"});
    double first = 0, last = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      first += steps[i].at(metric).get<double>();
      last += steps[steps.size() - 1 - i].at(metric).get<double>();
    }
    EXPECT_LT(last, 0.6 * first) << from;
  }
}

// They divide a step's answers, or write them together where they share the weights, and deal what was written: the
// run is that of one process.
TEST_P(CliOnPolicy, SeveralProcessesDoWhatOneDoes) {
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
  if (GetParam() != Device::cpu) GTEST_SKIP() << "one process per GPU";
  for (const std::string learn : {"answers", "base", "another"}) {
    const std::string keys =
        "learning_rate: 1.0e-3\nlr_scheduler: constant\nadam_epsilon: 1.0e-5\nsave_steps: 4\n" +
        (learn == "answers" ? "sdft: {enabled: true, on_policy: true, max_new_tokens: 24}\n" : predictions_from(learn));
    for (const auto& [processes, zero] : {std::pair{"2", "0"}, {"3", "1"}, {"2", "3"}}) {
      const std::string name = learn + processes + zero;
      const auto several = train(name, keys,
                                 {"--processes", processes, "--parallel.zero", zero, "--gradient_accumulation_steps",
                                  "1", "--max_steps", "4"});
      ASSERT_EQ(several.size(), 4u) << name;
      const auto alone = train("alone-" + name, keys, {"--gradient_accumulation_steps", processes, "--max_steps", "4"});
      for (std::size_t i = 0; i < several.size(); ++i) {
        const double expected = alone[i].at("loss");
        EXPECT_NEAR(several[i].at("loss").get<double>(), expected, 1e-5 * expected + 1e-6) << name << " step " << i;
        EXPECT_EQ(several[i].at("valid_tokens"), alone[i].at("valid_tokens")) << name << " step " << i;
      }
      // A step's answers are drawn by its number, on any number of processes.
      fs::remove(folder / name / "summary.json");
      fs::remove(folder / name / "model.safetensors");
      const auto more = train(name, keys, {"--resume", "--gradient_accumulation_steps", processes, "--max_steps", "6"});
      const auto whole = train("whole-" + name, keys, {"--gradient_accumulation_steps", processes, "--max_steps", "6"});
      ASSERT_EQ(more.size(), 6u) << name;
      const double expected = whole[5].at("loss");
      EXPECT_NEAR(more[5].at("loss").get<double>(), expected, 1e-5 * expected + 1e-6) << name;
    }
  }
}

TEST_P(CliOnPolicy, IsPlannedAndRefusedWhereItCannotBe) {
  const std::string keys = "learning_rate: 1.0e-3\nsdft: {enabled: true, on_policy: true, max_new_tokens: 300}\n";
  write_config("run", keys);
  const auto device_bytes = [&](const std::string& config) {
    const CommandResult plan = inlay({"plan", folder / config, "--json"});
    EXPECT_EQ(plan.code, 0) << plan.err;
    return nlohmann::json::parse(plan.out).at("device_peak_bytes").get<std::int64_t>();
  };
  const std::int64_t with = device_bytes("run.yaml");
  write_config("without", "learning_rate: 1.0e-3\n");
  EXPECT_GT(with, device_bytes("without.yaml"));
  EXPECT_EQ(inlay({"plan", folder / "run.yaml", "--processes", "2"}).code, 0);
  write_config("run", keys + "loss: {token_weight: stm}\n");
  EXPECT_THAT(inlay({"plan", folder / "run.yaml"}).err, HasSubstr("loss.token_weight stm masks tokens"));
  write_config("run", "learning_rate: 1.0e-3\nsdft: {on_policy: true}\n");
  EXPECT_THAT(inlay({"plan", folder / "run.yaml"}).err, HasSubstr("sdft.on_policy is for self-distillation"));
}

// Otherwise a run that is as good as one without it would only be seen in metrics.jsonl.
TEST_P(CliOnPolicy, SaysOnceWhereNoAnswerIsTaken) {
  write_config("run", "learning_rate: 1.0e-3\nsdft: {enabled: true, on_policy: true, max_new_tokens: 1}\n");
  const CommandResult result = inlay({"train", folder / "run.yaml"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string line = "sdft: none of the answers of 5 steps was taken";
  const std::size_t at = result.err.find(line);
  ASSERT_NE(at, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find(line, at + 1), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(, CliOnPolicy, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
