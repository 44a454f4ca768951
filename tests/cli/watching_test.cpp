#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <regex>

#include "io/http.h"
#include "support/small_run.h"

// What a person, or a program, sees of a run while it goes and afterwards.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

TEST(CliWatching, EveryRecordSaysWhenWhichRunAndWhichVersion) {
  const SmallRun run;
  ASSERT_EQ(run.train("max_steps: 4\nsave_steps: 2\n" + run.evaluation()).code, 0);
  const auto records = run.metrics();
  ASSERT_EQ(records.size(), 1u + 4u + 1u);
  const nlohmann::json summary = run.summary();
  EXPECT_TRUE(std::regex_match(summary.at("run").get<std::string>(), std::regex("[0-9a-f]{16}")));
  std::string before;
  for (const auto& record : records) {
    EXPECT_EQ(record.at("run"), summary.at("run"));
    EXPECT_EQ(record.at("version"), summary.at("version"));
    const std::string time = record.at("time");
    EXPECT_TRUE(std::regex_match(time, std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)"))) << time;
    EXPECT_GE(time, before);
    before = time;
  }
  EXPECT_LE(summary.at("began").get<std::string>(), records.front().at("time").get<std::string>());
  EXPECT_GE(summary.at("ended").get<std::string>(), records.back().at("time").get<std::string>());

  // It stays the same run when it goes on.
  fs::remove_all(run.path("checkpoint-4"));
  fs::remove(run.path("summary.json"));
  ASSERT_EQ(run.train("max_steps: 4\nsave_steps: 2\n" + run.evaluation(), {"--resume"}).code, 0);
  for (const auto& record : run.metrics()) EXPECT_EQ(record.at("run"), summary.at("run"));
  EXPECT_EQ(run.summary().at("began"), summary.at("began"));
  // And another one is another.
  fs::remove_all(run.path());
  ASSERT_EQ(run.train("max_steps: 1\n").code, 0);
  EXPECT_NE(run.summary().at("run"), summary.at("run"));
}

TEST(CliWatching, EvaluatesBeforeTheFirstStepUnlessToldNotTo) {
  const SmallRun run;
  ASSERT_EQ(run.train("max_steps: 2\n" + run.evaluation()).code, 0);
  const auto records = run.metrics();
  EXPECT_EQ(records.front().at("step"), 0);
  EXPECT_GT(records.front().at("eval_loss"), records.back().at("eval_loss"));
  // It is the base model that was evaluated.
  const CommandResult base = inlay(
      {"eval", run.folder() / "base", "--data", run.data(), "--json", "--quiet", "--device", "cpu", "--dtype", "fp32"});
  ASSERT_EQ(base.code, 0) << base.err;
  EXPECT_NEAR(nlohmann::json::parse(base.out).at("loss").get<double>(), records.front().at("eval_loss").get<double>(),
              1e-5);
  const std::string result = read_text(run.path("model.safetensors"));
  fs::remove_all(run.path());
  ASSERT_EQ(run.train("max_steps: 2\neval_on_start: false\n" + run.evaluation()).code, 0);
  EXPECT_EQ(run.metrics().front().at("step"), 1);
  EXPECT_EQ(read_text(run.path("model.safetensors")), result);  // looking changes nothing
}

TEST(CliWatching, ASignalBeforeTheFirstStepLeavesNothingInTheWay) {
  const SmallRun run;
  std::string many;
  for (int i = 0; i < 20000; ++i) many += read_text(run.data());
  const std::string more =
      "max_steps: 2\ntest_datasets: [{path: " + run.folder().write("many.jsonl", many).string() + "}]\n";
  const CommandResult stopped =
      run.train(more, {}, {.interrupt_when = [&] { return fs::exists(run.path("metrics.jsonl")); }});
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("interrupted while evaluating before the first step; nothing was written"));
  EXPECT_TRUE(run.checkpoints().empty());
  const CommandResult again = run.train("max_steps: 2\n");
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, Not(HasSubstr("an earlier run")));
}

TEST(CliWatching, JsonOnStandardOutputIsMetricsAndASummaryAndNothingElse) {
  const SmallRun run;
  const CommandResult result = run.train("max_steps: 3\n" + run.evaluation(), {"--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto printed = SmallRun::records_of(result.out);
  const auto written = run.metrics();
  ASSERT_EQ(printed.size(), written.size() + 1);
  EXPECT_TRUE(std::equal(written.begin(), written.end(), printed.begin()));
  EXPECT_EQ(printed.back().at("summary"), run.summary());
  EXPECT_EQ(printed[1].at("total_steps"), 3);
  EXPECT_THAT(result.err, HasSubstr("step 3/3"));  // for people, as ever
}

TEST(CliWatching, AReaderThatGoesDoesNotEndTheRun) {
  const SmallRun run;
  ASSERT_EQ(run.train("max_steps: 1\n").code, 0);  // writes the configuration
  const std::string command = program().string() + " train " + (run.folder() / "run.yaml").string() +
                              " --max_steps 200 --output_dir " + (run.folder() / "other").string() + " --json 2>" +
                              (run.folder() / "log").string() + " | head -1";
  const CommandResult result = inlay::testing::run("sh", {"-c", command});
  EXPECT_EQ(SmallRun::records_of(result.out).size(), 1u);
  EXPECT_TRUE(fs::exists(run.folder() / "other/summary.json"));
  EXPECT_THAT(read_text(run.folder() / "log"), HasSubstr("the run goes on without --json"));
}

TEST(CliWatching, AWarmUpThatOutlastsTheRunIsSaid) {
  const SmallRun run;
  const auto said = [&](const char* more) {
    std::filesystem::remove_all(run.path());
    const CommandResult result = run.train(std::string("max_steps: 2\n") + more, {"--lr_scheduler", "linear"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.err;
  };
  const std::string note = "note: the warm-up takes 2 steps, so the learning rate does not reach 0.001";
  EXPECT_THAT(said("warmup_steps: 2\n"), HasSubstr(note));
  EXPECT_THAT(said("warmup_steps: 1\n"), Not(HasSubstr("warm-up")));
}

TEST(CliWatching, PlanAndRunSayHowLongItIs) {
  const SmallRun run;
  const CommandResult trained = run.train("num_epochs: 3\n");
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::int64_t steps = run.summary().at("steps");
  const CommandResult plan = inlay({"plan", run.folder() / "run.yaml", "--json", "--quiet"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  const auto json = nlohmann::json::parse(plan.out);
  EXPECT_EQ(json.at("steps"), steps);
  EXPECT_EQ(json.at("tokens"), run.summary().at("tokens"));
  EXPECT_EQ(json.at("epochs"), 3);
  EXPECT_GT(json.at("seconds").get<double>(), 0);
  const std::string text = "steps over 3 epochs, about ";
  EXPECT_THAT(inlay({"plan", run.folder() / "run.yaml", "--quiet"}).out,
              HasSubstr("the run: " + std::to_string(steps) + " " + text));
  EXPECT_THAT(trained.err, HasSubstr(std::to_string(steps) + " " + text));
}

// A run that was killed when all but its result was there evaluates its last step again.
TEST(CliWatching, ABoardIsToldOfAnEvaluationOnce) {
  const SmallRun run;
  const std::string more = "max_steps: 4\nsave_steps: 2\nreport_to: tensorboard\n" + run.evaluation();
  const auto evaluations = [&] {
    std::size_t count = 0;
    for (const auto& file : fs::directory_iterator(run.path("tensorboard"))) {
      count += times(read_text(file.path()), "eval/loss");
    }
    return count;
  };
  ASSERT_EQ(run.train(more).code, 0);
  EXPECT_EQ(evaluations(), 2u);  // before the first step, and after the last
  fs::remove(run.path("summary.json"));
  const CommandResult resumed = run.train(more, {"--resume"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("step 4: eval loss"));
  EXPECT_EQ(evaluations(), 2u);
}

TEST(CliWatching, AReportFollowsTheRunUntilCtrlC) {
  const SmallRun run;
  ASSERT_EQ(run.train("max_steps: 3\n").code, 0);
  fs::remove(run.path("summary.json"));  // as if it were under way
  const fs::path out = run.folder() / "out";
  const std::string command = program().string() + " report " + run.path().string() + " --follow > " + out.string();
  int status = 0;
  std::string page;
  const CommandResult result = inlay::testing::run(
      "sh", {"-c", "exec " + command}, {.interrupt_when = [&] {
        const std::string text = fs::exists(out) ? read_text(out) : "";
        const std::size_t at = text.find("http://"), end = text.find(' ', at);
        if (at == text.npos || end == text.npos) return false;
        const io::HttpResponse response = io::ask(io::parse_url(text.substr(at, end - at)), {.path = "/"}, 30);
        status = response.status;
        page = response.body;
        return true;
      }});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(status, 200);
  EXPECT_THAT(page, HasSubstr("its state after step 3 of 3. The page refreshes itself"));
  EXPECT_THAT(read_text(out), HasSubstr("the report is at http://127.0.0.1:"));
  EXPECT_EQ(inlay({"report", run.path(), "--port", "4000"}).code, 2);  // for --follow alone
}

// On a terminal the live line is overwritten; what stays must show the course of the loss. `script` is a terminal.
TEST(CliWatching, TheLossStaysInTheScrollbackOfATerminal) {
  if (inlay::testing::run("sh", {"-c", "command -v script"}).code != 0)
    GTEST_SKIP() << "script is not installed (Debian: bsdutils)";
  const SmallRun run;
  ASSERT_EQ(run.train("max_steps: 1\n").code, 0);
  const std::string command = "TERM=xterm " + program().string() + " train " + (run.folder() / "run.yaml").string() +
                              " --max_steps 100 --output_dir " + (run.folder() / "other").string();
  const CommandResult result = inlay::testing::run("script", {"-qec", command, "/dev/null"});
  ASSERT_EQ(result.code, 0) << result.out;
  // A line that stays is ended by a newline before anything erases it.
  std::vector<int> kept;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    const std::string last = line.substr(line.rfind("\033[K") == line.npos ? 0 : line.rfind("\033[K") + 3);
    if (std::regex_search(last, match, std::regex("^step (\\d+)/100  loss "))) kept.push_back(std::stoi(match[1]));
  }
  ASSERT_EQ(kept.size(), 21u);
  EXPECT_EQ(kept.front(), 1);
  EXPECT_EQ(kept[1], 5);
  EXPECT_EQ(kept.back(), 100);
  // What passes by begins with what people watch it for: half of it is all that a narrow terminal shows.
  EXPECT_TRUE(std::regex_search(result.out, std::regex("╌ step \\d+/100  ETA \\S+  loss ")));
}

}  // namespace
}  // namespace inlay::testing
