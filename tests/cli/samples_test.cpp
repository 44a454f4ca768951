#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include <nlohmann/json.hpp>

#include "support/command.h"

// What a model answers while it is being trained.
namespace inlay::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

// A random model that speaks in bytes.
class CliSamples : public ::testing::Test {
 protected:
  CliSamples() {
    EXPECT_EQ(inlay({"init", "--preset", "tiny", folder_ / "m"}).code, 0);
    folder_.write("m/chat_template.jinja",
                  "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                  "{% if add_generation_prompt %}assistant: {% endif %}");
    std::string rows;
    for (int i = 0; i < 8; ++i)
      rows += R"({"text": "one and two and three are numbers"})"
              "\n";
    folder_.write("data.jsonl", rows);
  }

  CommandResult train(const std::string& more, Words arguments = {}) const {
    folder_.write("run.yaml", "base_model: " + (folder_ / "m").string() + "\noutput_dir: " + run_.string() +
                                  "\ndatasets: [{path: " + (folder_ / "data.jsonl").string() +
                                  ", type: completion}]\nlearning_rate: 1.0e-2\nsequence_len: 32\nmax_steps: 4\n"
                                  "device: cpu\ndtype: fp32\ndataset_prepared_path: off\n" +
                                  more);
    arguments.insert(arguments.begin(), {"train", folder_ / "run.yaml"});
    return inlay(arguments, {.environment = {{"OMP_NUM_THREADS", "1"}}});
  }
  // By steps, as metrics.jsonl has them.
  std::map<std::int64_t, Words> answers() const {
    std::map<std::int64_t, Words> result;
    std::istringstream lines(read_text(run_ / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const json record = json::parse(line);
      if (!record.contains("samples")) continue;
      EXPECT_FALSE(result.contains(record.at("step"))) << line;
      for (const json& sample : record.at("samples")) result[record.at("step")].push_back(sample.at("answer"));
    }
    return result;
  }
  Words generate(const Words& prompts, Words more) const {
    more.insert(more.begin(), {"generate", folder_ / "m", "--device", "cpu", "--dtype", "fp32", "--max-new-tokens", "6",
                               "--json", "--quiet"});
    for (const std::string& prompt : prompts) more.insert(more.end(), {"--prompt", prompt});
    std::istringstream lines(inlay(more).out);
    Words texts;
    for (std::string line; std::getline(lines, line);) texts.push_back(json::parse(line).at("text"));
    return texts;
  }

  TempFolder folder_;
  fs::path run_ = folder_ / "run";
};

const std::string prompts = "sample_prompts: [one, 'and what then?']\nsample_tokens: 6\n";
const std::string evaluation = "val_set_size: 2\neval_steps: 2\n";

// The same that the model says when it is asked afterwards, whatever trains, wherever it lives and on however many
// processes.
TEST_F(CliSamples, AreWhatTheModelSaysWhenItIsAsked) {
  const std::string adapter = "adapter: lora\nlora_r: 4\nlora_alpha: 8\nlora_target_linear: true\n";
  const std::string osft = "osft: {unfreeze_rank_ratio: 0.5, cache: off, basis: weights}\n";
  const std::pair<std::string, Words> cases[] = {{"", {}},
                                                 {adapter, {}},
                                                 {osft, {}},
                                                 {"memory: {host_layers: 1}\n", {}},
                                                 {"parallel: {zero: 3}\n", {"--processes", "2"}}};
  const Words asked = {"one", "and what then?"};
  const Words before = generate(asked, {"--as", "chat"});
  ASSERT_EQ(before.size(), 2u);
  for (const auto& [method, arguments] : cases) {
    SCOPED_TRACE(method);
    if (!arguments.empty() && !has_mpirun()) continue;
    const CommandResult result = train(prompts + evaluation + method, arguments);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("step 0: one → "));
    auto found = answers();
    ASSERT_EQ(found.size(), 3u);  // before the first step, with the evaluation, at the end
    EXPECT_EQ(found[0], before);
    EXPECT_NE(found[4], before);
    if (method == adapter) {
      EXPECT_EQ(found[4], generate(asked, {"--as", "chat", "--adapter", run_}));
    } else {
      fs::rename(folder_ / "m", folder_ / "base");
      fs::rename(run_, folder_ / "m");
      EXPECT_EQ(found[4], generate(asked, {"--as", "chat"}));
      fs::rename(folder_ / "m", run_);
      fs::rename(folder_ / "base", folder_ / "m");
    }
    fs::remove_all(run_);
  }
}

TEST_F(CliSamples, ComeWhenTheyAreWantedAndChangeNothing) {
  ASSERT_EQ(train("").code, 0);
  const std::string model = read_text(run_ / "model.safetensors");
  fs::remove_all(run_);
  ASSERT_EQ(train(prompts + "sample_steps: 1\nsample_as: text\n").code, 0);
  auto found = answers();
  EXPECT_EQ(found.size(), 5u);
  EXPECT_EQ(found[0], generate({"one", "and what then?"}, {"--as", "text"}));
  EXPECT_EQ(read_text(run_ / "model.safetensors"), model);
  EXPECT_EQ(inlay({"report", run_}).code, 0);
  EXPECT_THAT(read_text(run_ / "report.html"), HasSubstr("Answers while it learned"));
  fs::remove_all(run_);
  ASSERT_EQ(train(prompts).code, 0);  // nothing to evaluate
  EXPECT_EQ(answers().size(), 2u);
  fs::remove_all(run_);
  EXPECT_THAT(train("sample_steps: 2\n").err, HasSubstr("sample_steps belongs to sample_prompts, which is not given"));
  EXPECT_THAT(train("sample_tokens: 6\n").err, HasSubstr("sample_tokens belongs to sample_prompts"));
}

// A resumed run has each of them once.
TEST_F(CliSamples, OfAResumedRunAreThoseOfOneThatNeverStopped) {
  const std::string more = prompts + "sample_steps: 1\nsave_steps: 2\n";
  ASSERT_EQ(train(more).code, 0);
  const auto whole = answers();
  fs::remove_all(run_ / "checkpoint-4");
  fs::remove(run_ / "summary.json");
  const CommandResult resumed = train(more, {"--resume"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(answers(), whole);
}

// Killed after its last checkpoint and before its result was there: what it had written of its last step stays, and is
// not written again.
TEST_F(CliSamples, OfARunThatDiedAtItsEndAreWrittenOnce) {
  const auto records = [&] {
    std::vector<json> result;
    std::istringstream lines(read_text(run_ / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) result.push_back(json::parse(line));
    return result;
  };
  const std::string more = prompts + evaluation + "save_steps: 2\n";
  ASSERT_EQ(train(more).code, 0);
  const std::vector<json> whole = records();
  ASSERT_EQ(whole.size(), 4u + 3u + 3u);  // steps, evaluations, samples
  fs::remove(run_ / "summary.json");
  const CommandResult resumed = train(more, {"--resume", "--json"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(records(), whole);
  EXPECT_THAT(resumed.out, HasSubstr("\"eval_loss\"")) << "who follows this process has not seen it";

  // Between the two.
  fs::remove(run_ / "summary.json");
  std::string text = read_text(run_ / "metrics.jsonl");
  text.resize(text.rfind("{\"step\":4,\"samples\""));
  folder_.write("run/metrics.jsonl", text);
  ASSERT_EQ(train(more, {"--resume"}).code, 0);
  std::vector<json> again = records();
  ASSERT_EQ(again.size(), whole.size());
  EXPECT_EQ(again.back().at("samples"), whole.back().at("samples"));
  again.pop_back();
  EXPECT_TRUE(std::equal(again.begin(), again.end(), whole.begin()));
}

}  // namespace
}  // namespace inlay::testing
