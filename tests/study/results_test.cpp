#include "study/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "study/charts.h"
#include "study/page.h"
#include "support/files.h"

namespace inlay::study {
namespace {

using inlay::testing::TempFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Three methods at three learning rates from two seeds, through two tasks, with names that want escaping.
Study study_of_three() {
  Study study;
  study.tasks = {{"a<b>", Metric::loss}, {"c&d", Metric::choice_accuracy}};
  study.held = {{"\"old\"", Metric::token_accuracy}};
  study.methods = {"sft", "one's", "<script>alert(1)</script>"};
  study.base = {{{.loss = 4.0, .token_accuracy = 0.1}, {.loss = 5.0, .choice_accuracy = 0.25}},
                {{.loss = 2.0, .token_accuracy = 0.5}}};
  for (std::size_t m = 0; m < 3; ++m) {
    for (int r = 0; r < 3; ++r) {
      for (const std::int64_t seed : {1, 2}) {
        const double learned = 0.1 * r + 0.01 * static_cast<double>(seed),
                     forgot = (0.2 + 0.3 * r) / (1.0 + static_cast<double>(m));
        Sequence sequence;
        sequence.method = m, sequence.learning_rate = 1e-5 * std::pow(3, r), sequence.seed = seed;
        sequence.rows = {
            {{{.loss = 3.0 - learned, .token_accuracy = 0.3}, {.loss = 4.5, .choice_accuracy = 0.25}},
             {{.loss = 2.0 + forgot / 2, .token_accuracy = 0.5}}},
            {{{.loss = 3.2 - learned, .token_accuracy = 0.3}, {.loss = 3.5 - learned, .choice_accuracy = 0.75}},
             {{.loss = 2.0 + forgot, .token_accuracy = 0.4}}}};
        study.sequences.push_back(sequence);
      }
    }
  }
  return study;
}

TEST(StudyResults, RowsComeBackExactly) {
  const TempFolder folder;
  const Study study = study_of_three();
  ScoreRow row = study.sequences[3].rows[1];
  row.tasks[0].loss = 1.0 / 3;
  write_row(folder / "evaluation.json", study, row);
  const ScoreRow back = read_row(folder / "evaluation.json", study);
  EXPECT_EQ(back.tasks[0].loss, 1.0 / 3);
  EXPECT_EQ(back.tasks[0].token_accuracy, 0.3);
  EXPECT_FALSE(back.tasks[0].choice_accuracy);
  EXPECT_EQ(back.tasks[1].choice_accuracy, 0.75);
  EXPECT_EQ(back.held[0].loss, row.held[0].loss);
}

TEST(StudyResults, JsonHoldsMatricesSpreadsAndComparisons) {
  const Study study = study_of_three();
  const auto json = nlohmann::json::parse(results_json(study, analyse(study)));
  EXPECT_EQ(json.at("sequences_complete"), 18);
  EXPECT_EQ(json.at("sequences").size(), 18u);
  const auto& sft = json.at("methods").at(0);
  EXPECT_FALSE(sft.contains("forgetting_against_baseline"));
  const auto& rate = sft.at("learning_rates").at(2);
  EXPECT_TRUE(rate.at("average_score").is_null()) << "a loss and an accuracy have no mean";
  EXPECT_NEAR(rate.at("backward_transfer_of_losses").at("mean").get<double>(), -0.2, 1e-12);
  EXPECT_EQ(rate.at("matrix").size(), 3u);
  EXPECT_EQ(rate.at("matrix").at(0).at(1), 0.25);
  EXPECT_EQ(rate.at("new_loss").at("values").size(), 2u);
  EXPECT_EQ(json.at("held").at(0).at("metric"), "token_accuracy");
  EXPECT_EQ(rate.at("held").at("\"old\"").at("metric_over_tasks"), (std::vector<double>{0.5, 0.5, 0.4}));
  EXPECT_EQ(rate.at("held").at("\"old\"").at("loss_over_tasks").size(), 3u);
  const auto& against = json.at("methods").at(1).at("forgetting_against_baseline");
  EXPECT_NEAR(against.at("at_best_tuned_baseline").at("ratio").get<double>(), 0.5, 1e-12);
  EXPECT_EQ(against.at("at_baseline_frontier").size(), 3u);
  EXPECT_NEAR(against.at("over_range").at("ratio").get<double>(), 0.5, 1e-12);
}

TEST(StudyResults, TheTableShowsEveryRateAndTheComparison) {
  const Study study = study_of_three();
  const std::string table = results_table(study, analyse(study));
  EXPECT_THAT(table, HasSubstr("9e-5 *"));
  EXPECT_THAT(table, HasSubstr("+0.800 ± 0.000"));
  EXPECT_THAT(table, HasSubstr("forgetting at equal new loss, as a share of sft's"));
  EXPECT_THAT(table, HasSubstr("0.33 (0.33 to 0.33)"));
  // The matrix, held set last, each by its own metric.
  EXPECT_THAT(table, HasSubstr("model                           after   a<b>     c&d  held \"old\"\n"
                               "base model                             4.000  25.0 %      50.0 %\n"
                               "sft 9e-5                         a<b>  2.785  25.0 %      50.0 %\n"
                               "                                  c&d  2.985  75.0 %      40.0 %\n"));
}

TEST(StudyResults, ThePageStandsAloneAndEscapesNames) {
  const Study study = study_of_three();
  const std::string html =
      report_html(study, analyse(study), {.base_model = "models/<x>", .config = "a: <b> & \"c\"\n"});
  for (const char* part : {"<script", "<x>", "a<b>", "c&d", "\"old\""}) EXPECT_THAT(html, Not(HasSubstr(part)));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;"));
  EXPECT_THAT(html, HasSubstr("a: &lt;b&gt; &amp; &quot;c&quot;"));
  EXPECT_THAT(html, HasSubstr("models/&lt;x&gt;"));
  // Nothing is fetched: no address but the name of SVG's namespace, which is not one.
  std::string rest = html;
  for (std::size_t at; (at = rest.find("http://www.w3.org/2000/svg")) != rest.npos;) rest.erase(at, 26);
  for (const char* part : {"http:", "https:", "src=", "href=", "@import", "url("})
    EXPECT_THAT(rest, Not(HasSubstr(part)));
  for (const char* part : {"prefers-color-scheme: dark", "0.33×", "0.50×", "<svg", "9e-5"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
  EXPECT_THAT(html, Not(HasSubstr("nan")));
}

// A method whose whole frontier lies far from the baseline's would press the others into a corner.
TEST(StudyResults, WhatLiesFarFromTheBaselineIsNamedInsteadOfDrawn) {
  Study study = study_of_three();
  EXPECT_THAT(report_html(study, analyse(study), {}), Not(HasSubstr("Outside the chart")));
  for (Sequence& sequence : study.sequences) {
    if (sequence.method != 1) continue;
    for (ScoreRow& row : sequence.rows) {
      for (SetScore& score : row.tasks) score.loss += 9;
    }
  }
  const std::string html = report_html(study, analyse(study), {});
  const std::size_t named = html.find("Outside the chart: one&#39;s at ");
  ASSERT_NE(named, html.npos);
  EXPECT_EQ(html.find("<title>one&#39;s at "), html.npos) << "it is drawn, too";
  EXPECT_NE(html.find("<title>sft at "), html.npos);
}

TEST(StudyResults, ThePageOfABarelyBegunStudyIsDrawnToo) {
  Study study = study_of_three();
  for (Sequence& sequence : study.sequences) sequence.rows.clear();
  const std::string html = report_html(study, analyse(study), {});
  EXPECT_THAT(html, HasSubstr("0 of 18 sequences are complete"));
  study.sequences[0].rows = study_of_three().sequences[0].rows;
  EXPECT_THAT(report_html(study, analyse(study), {}), HasSubstr("1 of 18 sequences are complete"));
  EXPECT_THAT(results_table(study, analyse(study)), HasSubstr("1e-5 *"));
}

TEST(StudyCharts, TicksAreRound) {
  EXPECT_THAT(report::chart::round_ticks(2.98, 3.42, 8).at,
              ElementsAre(::testing::DoubleEq(3.0), ::testing::DoubleEq(3.05), ::testing::DoubleEq(3.1),
                          ::testing::DoubleEq(3.15), ::testing::DoubleEq(3.2), ::testing::DoubleEq(3.25),
                          ::testing::DoubleEq(3.3), ::testing::DoubleEq(3.35), ::testing::DoubleEq(3.4)));
  EXPECT_EQ(report::chart::round_ticks(2.98, 3.42, 8).decimals, 2);
  EXPECT_THAT(report::chart::round_ticks(0, 100, 5).at, ElementsAre(0, 20, 40, 60, 80, 100));
  EXPECT_EQ(report::chart::round_ticks(0, 100, 5).decimals, 0);
  EXPECT_THAT(report::chart::round_ticks(-0.3, 0.3, 6).at.size(),
              ::testing::AllOf(::testing::Ge(5u), ::testing::Le(8u)));
  for (const double range : {1e-6, 0.013, 1.0, 7.7, 123456.0}) {
    for (const int wanted : {4, 6, 8}) {
      const auto ticks = report::chart::round_ticks(1.0, 1.0 + range, wanted).at;
      EXPECT_GE(ticks.size(), 2u) << range << " " << wanted;
      EXPECT_LE(ticks.size(), static_cast<std::size_t>(2 * wanted)) << range;
    }
  }
}

// Every label's box from the drawing itself; boxes are as wide as the text in a 12 px font.
TEST(StudyCharts, LabelsDoNotCoverEachOther) {
  FrontierChart chart;
  for (std::size_t s = 0; s < 3; ++s) {
    ChartSeries series{.style = s};
    for (int i = 0; i < 4; ++i) {
      series.points.push_back({.x = 3 + 0.02 * i + 0.003 * static_cast<double>(s),
                               .y = 2.5 - 0.1 * i + 0.004 * static_cast<double>(s),
                               .label = fmt::format("{}e-{}", s + 1, i),
                               .title = ""});
    }
    chart.series.push_back(series);
  }
  const std::string svg = draw(chart);
  struct Place {
    double x, y;
  };
  std::vector<Place> places;
  for (std::size_t at = 0; (at = svg.find("class=\"label\"", at)) != svg.npos; ++at) {
    const std::size_t text = svg.rfind("<text", at);
    Place place{};
    ASSERT_EQ(std::sscanf(svg.c_str() + text, "<text x=\"%lf\" y=\"%lf\"", &place.x, &place.y), 2);
    places.push_back(place);
  }
  ASSERT_EQ(places.size(), 12u);
  for (std::size_t i = 0; i < places.size(); ++i) {
    for (std::size_t j = i + 1; j < places.size(); ++j) {
      EXPECT_TRUE(std::abs(places[i].x - places[j].x) >= 24 || std::abs(places[i].y - places[j].y) >= 11) << i << j;
    }
  }
}

}  // namespace
}  // namespace inlay::study
