#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include <nlohmann/json.hpp>

#include "io/checkpoint.h"
#include "support/command.h"
#include "support/device_tensors.h"
#include "support/paths.h"

// Mixtures of experts as a user meets them: every family trained, planned, resumed and asked to write.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class CliMoe : public ::testing::TestWithParam<std::tuple<const char*, Device>> {
 protected:
  CliMoe() {
    fs::copy(source_folder() / "tests/golden/models" / std::get<0>(GetParam()), folder / "base");
    config = "base_model: " + (folder / "base").string() + "\noutput_dir: " + (folder / "run").string() +
             "\ndatasets: [{path: " + (folder / "base/data.jsonl").string() +
             "}]\nlearning_rate: 3.0e-3\nsequence_len: 64\nmicro_batch_size: 2\nsample_packing: false\n"
             "gradient_accumulation_steps: 3\nmax_steps: 6\ndeterministic: true\nshuffle: false\ndevice: " +
             device() + "\n";
  }

  static std::string device() { return std::string(name_of(std::get<1>(GetParam()))); }

  CommandResult train(const std::string& more = "", std::vector<std::string> arguments = {}) {
    folder.write("run.yaml", config + more);
    arguments.insert(arguments.begin(), {"train", folder / "run.yaml"});
    return inlay(arguments);
  }

  std::vector<double> losses() const {
    std::vector<double> result;
    std::istringstream lines(read_text(folder / "run/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) result.push_back(nlohmann::json::parse(line).at("loss"));
    return result;
  }

  TempFolder folder;
  std::string config;
};

TEST_P(CliMoe, LearnsAndResumesBitForBitAsPlanned) {
  const std::string osft =
      "osft: {unfreeze_rank_ratio: 0.5, cache: off, calibration: {samples: 4, length: 16}, basis: ";
  for (const std::string& method : {std::string("dtype: bf16\n"), osft + "activations}\n", osft + "weights}\n"}) {
    SCOPED_TRACE(method);
    const std::string more = "save_steps: 2\n" + method;
    const CommandResult result = train(more);
    ASSERT_EQ(result.code, 0) << result.err;
    const std::vector<double> first = losses();
    EXPECT_LT(first.back(), first.front());

    const CommandResult plan = inlay({"plan", folder / "run.yaml", "--json"});
    ASSERT_EQ(plan.code, 0) << plan.err;
    const auto summary = nlohmann::json::parse(read_text(folder / "run/summary.json"));
    EXPECT_EQ(summary.at("planned_device_peak_bytes"), nlohmann::json::parse(plan.out).at("device_peak_bytes"));
    EXPECT_LE(summary.at("device_peak_bytes"), summary.at("planned_device_peak_bytes"));

    const std::uint64_t whole = io::Checkpoint(folder / "run").content_hash();
    EXPECT_EQ(io::Checkpoint(folder / "run").names(), io::Checkpoint(folder / "base").names());
    for (const fs::directory_entry& entry : fs::directory_iterator(folder / "run")) {
      const std::string name = entry.path().filename().string();
      if (name != "checkpoint-2" && name != "metrics.jsonl" && name != "config.yaml") fs::remove_all(entry.path());
    }
    const CommandResult resumed = train(more, {"--resume"});
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(losses(), first);
    EXPECT_EQ(io::Checkpoint(folder / "run").content_hash(), whole);
    const CommandResult text =
        inlay({"generate", folder / "run", "--ids", "5,6,7", "--max-new-tokens", "8", "--device", device()});
    EXPECT_EQ(text.code, 0) << text.err;
    fs::remove_all(folder / "run");
  }
}

TEST_P(CliMoe, FreezesWhatIsNamedAndBalancesWhenAsked) {
  const io::Checkpoint base(folder / "base");
  std::string names;  // the same tensors by the names that they have there
  for (const std::string& name : base.names()) {
    if (name.find("experts") != std::string::npos) names += (names.empty() ? "" : ", ") + name;
  }
  double plain = 0;
  for (const std::string& frozen : {std::string("'*experts*'"), names}) {
    const CommandResult result = train("dtype: fp32\nrouter_aux_loss_coef: 0\nfreeze: [" + frozen + "]\n");
    ASSERT_EQ(result.code, 0) << result.err;
    const io::Checkpoint trained(folder / "run");
    for (const std::string& name : base.names()) {
      const ConstView before = base.tensor(name), after = trained.tensor(name);
      const bool same = std::memcmp(before.data(), after.data(), before.bytes()) == 0;
      EXPECT_EQ(same, name.find("experts") != std::string::npos) << name;
    }
    plain = losses().front();
    fs::remove_all(folder / "run");
  }
  ASSERT_EQ(train("dtype: fp32\nrouter_aux_loss_coef: 0.5\n").code, 0);
  EXPECT_GT(losses().front(), plain + 0.4);  // evenly used experts would still cost the factor times the choices
  fs::remove_all(folder / "run");
  EXPECT_THAT(train("freeze: ['*nothing*']\n").err, HasSubstr("freeze: '*nothing*' matches no tensor"));
  EXPECT_THAT(train("freeze: ['*q_proj.weight']\n").err, HasSubstr("freeze both or neither"));
}

INSTANTIATE_TEST_SUITE_P(, CliMoe,
                         ::testing::Combine(::testing::Values("mixtral_balance", "qwen3_moe_mixed", "gpt_oss_balance"),
                                            ::testing::ValuesIn(devices())),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::string(name_of(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace inlay::testing
