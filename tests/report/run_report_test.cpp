#include "report/run_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include <fmt/format.h>

#include "report/line_chart.h"
#include "support/files.h"

namespace inlay::report {
namespace {

using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::HasSubstr;
using ::testing::Not;

std::string step_line(int step, double loss) {
  return fmt::format(
      R"({{"step":{},"epoch":0,"loss":{},"grad_norm":1.5,"raw_grad_norm":1.5,"lr":2e-05,"tokens":64,"tokens_total":{},)"
      R"("tokens_per_second":1000,"seconds":{},"device_peak_bytes":1048576,"host_peak_bytes":2097152}})"
      "\n",
      step, loss, 64 * step, 0.1 * step);
}

std::string metrics_of_three() {
  return step_line(1, 3.5) + step_line(2, 3.25) + R"({"step":2,"eval_loss":3.125,"eval_accuracy":0.25})" + "\n" +
         step_line(3, 3.0);
}

const char* const config = "base_model: \"models/<b>\"\noutput_dir: o\ndatasets: [d.jsonl]\nlearning_rate: 1e-4\n";

TEST(ReportRun, ReadsWhatARunLeft) {
  const TempFolder folder;
  folder.write("metrics.jsonl", metrics_of_three());
  folder.write("config.yaml", config);
  folder.write("summary.json", R"({"steps": 3, "device": "cpu", "seconds": 75, "device_peak_bytes": 1048576})");
  const RunRecord run = read_run(folder.path());
  ASSERT_EQ(run.steps.size(), 3u);
  EXPECT_EQ(run.steps[2].step, 3);
  EXPECT_EQ(run.steps[2].loss, 3.0);
  EXPECT_EQ(run.steps[1].learning_rate, 2e-5);
  ASSERT_EQ(run.evaluations.size(), 1u);
  EXPECT_EQ(run.evaluations[0].loss, 3.125);
  EXPECT_TRUE(run.finished);
  EXPECT_EQ(run.base_model, "models/<b>");
  EXPECT_EQ(run.name, folder.path().filename().string());

  const std::string html = run_html(run);
  for (const char* part : {"<svg", "3.000", "3.125", "learning rate (in 1e-5)", "evaluation loss", "1m 15s", "1.0 MiB",
                           "models/&lt;b&gt;", "prefers-color-scheme: dark"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
  EXPECT_THAT(html, Not(HasSubstr("The run is not complete")));
}

// Where the best model is the result, its evaluation is the run's, not that of the last step.
TEST(ReportRun, TheEvaluationShownIsTheResults) {
  const TempFolder folder;
  folder.write("metrics.jsonl", metrics_of_three() + R"({"step":3,"eval_loss":3.5})" + "\n");
  folder.write("config.yaml", config);
  folder.write("summary.json", R"({"steps": 3, "device": "cpu", "seconds": 75, "result_step": 2})");
  const std::string card = R"(evaluation loss</h3><div class="big">)", best = card + "3.125", last = card + "3.500";
  EXPECT_THAT(run_html(read_run(folder.path())), HasSubstr(best));
  EXPECT_THAT(run_html(read_run(folder.path())), HasSubstr("of step 2, whose model is the result"));
  folder.write("summary.json", R"({"steps": 3, "device": "cpu", "seconds": 75})");
  EXPECT_THAT(run_html(read_run(folder.path())), HasSubstr(last));
  EXPECT_THAT(run_html(read_run(folder.path())), HasSubstr("lowest 3.125 at step 2"));
}

TEST(ReportRun, AnUnfinishedRunWithoutEvaluationIsShownToo) {
  const TempFolder folder;
  // Killed while it wrote: the last line is broken off.
  folder.write("metrics.jsonl", step_line(1, 3.5) + step_line(2, 3.25) + "{\"step\":3,\"lo");
  const RunRecord run = read_run(folder.path());
  EXPECT_EQ(run.steps.size(), 2u);
  EXPECT_FALSE(run.finished);
  const std::string html = run_html(run);
  EXPECT_THAT(html, HasSubstr("its state after step 2"));
  EXPECT_THAT(html, Not(HasSubstr("evaluation")));
  EXPECT_THAT(html, Not(HasSubstr("Configuration")));

  folder.write("metrics.jsonl", "");
  EXPECT_THAT(run_html(read_run(folder.path())), HasSubstr("No step is complete yet"));
  folder.write("metrics.jsonl", step_line(1, 3.5));
  EXPECT_THAT(run_html(read_run(folder.path())), HasSubstr("<circle"));  // a line of one point is none
}

TEST(ReportRun, ShowsTheAnswersOverTheSteps) {
  const TempFolder folder;
  const auto line = [](int step, const std::string& answer) {
    return fmt::format(
        R"({{"step":{},"samples":[{{"prompt":"Why <so>?","answer":"{}"}},{{"prompt":"p","answer":"x"}}]}})"
        "\n",
        step, answer);
  };
  // One that was killed answers once more after it went on.
  std::string metrics = line(0, "at first") + step_line(1, 3.5) + line(1, "killed") + line(1, "<i>later</i>");
  folder.write("metrics.jsonl", metrics);
  const RunRecord run = read_run(folder.path());
  EXPECT_EQ(run.steps.size(), 1u);
  ASSERT_EQ(run.answers.size(), 2u);
  EXPECT_EQ(run.answers[0].first, "Why <so>?");
  ASSERT_EQ(run.answers[0].second.size(), 2u);
  EXPECT_EQ(run.answers[0].second[1].text, "<i>later</i>");
  const std::string html = run_html(run);
  for (const char* part : {"Answers while it learned", "Why &lt;so&gt;?", "at first", "&lt;i&gt;later"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
  EXPECT_THAT(html, Not(HasSubstr("killed")));
  // Of many the first, the last, and some between.
  for (int step = 2; step <= 100; ++step) metrics += line(step, "answer" + std::to_string(step) + ".");
  folder.write("metrics.jsonl", metrics);
  const std::string many = run_html(read_run(folder.path()));
  EXPECT_THAT(many, HasSubstr("at first"));
  EXPECT_THAT(many, HasSubstr("answer100."));
  EXPECT_THAT(many, Not(HasSubstr("answer99.")));
}

TEST(ReportRun, SaysWhenByWhichVersionsAndOnWhichData) {
  const TempFolder folder;
  const auto line = [](int step, const char* time, const char* version) {
    return fmt::format(
        R"({{"step":{},"total_steps":9,"loss":3,"tokens_total":1234,"time":"2026-11-{}","run":"ab","version":"{}"}})"
        "\n",
        step, time, version);
  };
  folder.write("metrics.jsonl", line(1, "15T23:59:01.000Z", "1.0.0") + line(2, "16T00:10:01.000Z", "1.0.0") +
                                    line(3, "16T08:30:01.000Z", "<1.1>"));
  folder.write("config.yaml", std::string(config) + "val_set_size: 0.05\n");
  const RunRecord run = read_run(folder.path());
  EXPECT_EQ(run.run, "ab");
  EXPECT_EQ(run.total_steps, 9);
  const std::string html = run_html(run);
  for (const char* part :
       {"2026-11-15 23:59 to 2026-11-16 08:30 UTC, by Inlay 1.0.0, then &lt;1.1&gt;", "its state after step 3 of 9.",
        "d.jsonl", "5 % of it, held out", "1,234 tokens, in epoch 1"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
  EXPECT_THAT(html, Not(HasSubstr("refresh")));
  EXPECT_THAT(run_html(run, Page::live), HasSubstr(R"(<meta http-equiv="refresh" content="5">)"));
  folder.write("summary.json", R"({"steps": 9, "began": "2026-11-15T23:58:00.000Z", "version": "1.1",)"
                               R"("best": {"step": 6, "metric": "eval_loss", "value": 2.5}, "result_step": 6})");
  const std::string done = run_html(read_run(folder.path()), Page::live);
  EXPECT_THAT(done, Not(HasSubstr("refresh")));  // nothing will change any more
  EXPECT_THAT(done, HasSubstr("6, eval_loss 2.5"));
}

TEST(ReportRun, ANoisyLossHasItsCourseBeforeIt) {
  const TempFolder folder;
  std::string lines;
  for (int step = 1; step <= 23; ++step) lines += step_line(step, 3);
  folder.write("metrics.jsonl", lines);
  EXPECT_THAT(run_html(read_run(folder.path())), Not(HasSubstr("loss, averaged")));
  folder.write("metrics.jsonl", lines + step_line(24, 3));
  EXPECT_THAT(run_html(read_run(folder.path())), HasSubstr("loss, averaged"));
}

TEST(ReportRun, WhatIsNotARunIsAnErrorThatSaysSo) {
  const TempFolder folder;
  EXPECT_THAT(user_error_of([&] { read_run(folder.path()); }), HasSubstr("is not a run: there is no metrics.jsonl"));
  EXPECT_THAT(user_error_of([&] { read_run(folder / "nothing"); }), HasSubstr("is not a folder"));
  folder.write("metrics.jsonl", step_line(1, 3.5) + "oops\n" + step_line(2, 3.0));
  EXPECT_THAT(user_error_of([&] { read_run(folder.path()); }), HasSubstr("metrics.jsonl:2"));
  folder.write("metrics.jsonl", "{\"loss\": 1}\n" + step_line(2, 3.0));
  EXPECT_THAT(user_error_of([&] { read_run(folder.path()); }), HasSubstr("metrics.jsonl:1: step"));
  folder.write("metrics.jsonl", step_line(1, 3.5));
  folder.write("samples.json", "[{\"prompt\": 3}]");
  EXPECT_THAT(user_error_of([&] { read_run(folder.path()); }), HasSubstr("samples.json"));
}

TEST(ReportRun, ValuesThatAreNoNumbersAreLeftOut) {
  const TempFolder folder;
  folder.write("metrics.jsonl",
               step_line(1, 3.5) + "{\"step\": 2, \"loss\": null, \"lr\": null}\n" + step_line(3, 3.0));
  const RunRecord run = read_run(folder.path());
  EXPECT_TRUE(std::isnan(run.steps[1].loss));
  EXPECT_THAT(run_html(run), Not(HasSubstr("nan")));
}

TEST(ReportRun, ThePageStandsAloneAndEscapesAllThatComesFromFiles) {
  const TempFolder folder;
  folder.write("metrics.jsonl", metrics_of_three());
  folder.write("config.yaml", std::string(config) + "# <script>alert(1)</script>\n");
  folder.write("summary.json", R"({"device": "<img src=x>", "dtype": "\"'&"})");
  write_samples(folder.path(), {{"<script>p</script>", "<i>before</i>", "after & \"more\" \xff"}});
  const std::string html = run_html(read_run(folder.path()));
  for (const char* part : {"<script", "<img", "<i>before", "http:", "https:", "href=", "@import", "url("}) {
    std::string rest = html;
    for (std::size_t at; (at = rest.find("http://www.w3.org/2000/svg")) != rest.npos;) rest.erase(at, 26);
    EXPECT_THAT(rest, Not(HasSubstr(part)));
  }
  for (const char* part : {"&lt;script&gt;p&lt;/script&gt;", "&lt;i&gt;before", "after &amp; &quot;more&quot;",
                           "&lt;img src=x&gt;", "&lt;script&gt;alert(1)"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
}

TEST(ReportLineChart, ManyPointsBecomeFewAndNoSpikeIsLost) {
  LineChart chart{.y_title = "loss", .description = "x", .from_zero = false, .series = {{.style = 1, .name = "loss"}}};
  for (int i = 0; i < 200000; ++i) chart.series[0].points.emplace_back(i, i == 123456 ? 50.0 : 1.0);
  const std::string svg = draw(chart);
  EXPECT_LT(svg.size(), 40000u);
  // The spike reaches the top of the plot: the least y of the line lies far above all others.
  const std::size_t from = svg.find("points=\"") + 8;
  std::istringstream points(svg.substr(from, svg.find('"', from) - from));
  double least = 1e9, most = 0, x = 0, y = 0;
  char comma = 0;
  while (points >> x >> comma >> y) {
    least = std::min(least, y);
    most = std::max(most, y);
  }
  EXPECT_GT(most - least, 150);
}

TEST(ReportLineChart, NothingFiniteDrawsNothing) {
  LineChart chart;
  EXPECT_EQ(draw(chart), "");
  chart.series = {{.style = 0, .name = "a", .points = {{1, NAN}, {2, INFINITY}}}};
  EXPECT_EQ(draw(chart), "");
}

TEST(ReportLineChart, SmoothingKeepsTheMean) {
  std::vector<std::pair<double, double>> points;
  for (int i = 0; i < 1000; ++i) points.emplace_back(i, i % 2 == 0 ? 1.0 : 3.0);
  const auto means = smoothed(points, 50);
  ASSERT_EQ(means.size(), 50u);
  for (const auto& [x, y] : means) EXPECT_DOUBLE_EQ(y, 2.0);
  EXPECT_DOUBLE_EQ(means[0].first, 9.5);
  EXPECT_EQ(smoothed({{1, 2}}, 50).size(), 1u);
}

}  // namespace
}  // namespace inlay::report
