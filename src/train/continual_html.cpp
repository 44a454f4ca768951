#include "train/continual_html.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "train/continual_charts.h"
#include "train/continual_options.h"
#include "train/continual_report.h"

namespace inlay::train {

namespace {

// Colours after Okabe and Ito, which eyes of every kind tell apart; lighter ones on the dark page.
constexpr const char* style = R"css(
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #17202a; --soft: #5b6672; --edge: #dde2e8;
  --grid: #e8ecf0; --heat: 0 114 178; --warn: #fff4d6; --c0: #5b6672; --c1: #0072b2; --c2: #d55e00; --c3: #009e73;
  --c4: #a8477f; --c5: #b07c00; --c6: #2f8fc9; }
@media (prefers-color-scheme: dark) {
  :root { --page: #11151a; --card: #1a2027; --ink: #e7ecf1; --soft: #9aa7b4; --edge: #2d3640; --grid: #262e37;
    --heat: 86 180 233; --warn: #3a3017; --c0: #a9b5c1; --c1: #56b4e9; --c2: #f28e4b; --c3: #2fc79b; --c4: #e08fbe;
    --c5: #e6b13d; --c6: #8fcdf2; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 40px 20px 64px; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 8px; letter-spacing: -0.02em; text-wrap: balance; }
h2 { font-size: 1.2rem; margin: 44px 0 4px; letter-spacing: -0.01em; }
h3 { font-size: 1rem; margin: 0 0 8px; font-weight: 600; }
p { margin: 0 0 12px; } .lead { font-size: 1.1rem; } .soft { color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 18px 20px; }
.cards { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(250px, 1fr)); margin: 22px 0 0; }
.cards .card { border-top: 4px solid var(--c); } .cards p { margin: 0 0 4px; font-size: 0.9rem; }
.big { font-size: 2.5rem; line-height: 1.1; font-weight: 650; font-variant-numeric: tabular-nums; margin: 2px 0 2px; }

.warn { background: var(--warn); border-radius: 8px; padding: 10px 14px; margin: 18px 0 0; }
figure { margin: 0; } .scroll { overflow-x: auto; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 0 0 8px; font-size: 0.9rem; }
.legend span { display: inline-flex; align-items: center; gap: 7px; }
svg { display: block; width: 100%; min-width: min(var(--w), 520px); max-width: var(--w); height: auto; }
svg.key { width: 28px; min-width: 28px; height: 14px; }
svg text { fill: var(--ink); font-size: 12.5px; font-family: inherit; } svg .tick { fill: var(--soft); }
svg .title { fill: var(--soft); font-size: 13px; } svg .note { fill: var(--soft); font-size: 12px; }
svg .label { fill: var(--c); font-weight: 600; font-size: 12px; }
.grid { stroke: var(--grid); } .rule { stroke: var(--soft); stroke-dasharray: 5 4; }
.strong { fill: none; stroke: var(--c); stroke-width: 2.2; stroke-linejoin: round; }
.thin { fill: none; stroke: var(--c); stroke-width: 1.2; stroke-dasharray: 2 4; opacity: 0.7; }
.whisker { stroke: var(--c); stroke-width: 1.2; opacity: 0.55; } .leader { stroke: var(--c); opacity: 0.5; }
.mark { fill: var(--c); stroke: var(--card); stroke-width: 1.5; } .faint { fill: var(--card); stroke: var(--c); }
.s0 { --c: var(--c0); } .s1 { --c: var(--c1); } .s2 { --c: var(--c2); } .s3 { --c: var(--c3); }
.s4 { --c: var(--c4); } .s5 { --c: var(--c5); } .s6 { --c: var(--c6); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
.list { width: 100%; } .list th, .list td { text-align: right; padding: 6px 8px; border-bottom: 1px solid var(--edge);
  white-space: nowrap; }
.list thead th { color: var(--soft); font-weight: 500; white-space: normal; vertical-align: bottom; }
.list th:first-child { text-align: left; }
.list tbody th { font-weight: 600; } .list tr.best td, .list tr.best th { font-weight: 600; }
.deviation { color: var(--soft); font-size: 0.85em; font-weight: 400; }
.list tbody tr:last-child > * { border-bottom: 0; }
.heat th { font-weight: 500; color: var(--soft); padding: 4px 8px; text-align: left; white-space: nowrap; }
.heat thead th { text-align: center; }
.heat td { text-align: center; padding: 7px 10px; min-width: 76px; border: 2px solid var(--card); border-radius: 6px; }
.heat td.just { box-shadow: inset 0 0 0 2px var(--ink); border-radius: 6px; font-weight: 600; }
.heat { width: 100%; } .heat small { display: block; font-size: 0.75rem; opacity: 0.8; line-height: 1.2; }
.heat .gap { border-left: 14px solid var(--card); }
.panels { display: flex; flex-wrap: wrap; gap: 14px; } .panels > * { max-width: 100%; flex: 1 1 auto; }
dl { display: grid; grid-template-columns: minmax(120px, max-content) 1fr; gap: 6px 18px; margin: 0;
  font-size: 0.92rem; }
dt { font-weight: 600; } dd { margin: 0; color: var(--soft); } @media (max-width: 640px) { dl { display: block; }
  dd { margin: 0 0 10px; } }
summary { cursor: pointer; font-weight: 600; }
details { margin: 14px 0 0; } details[open] summary { margin-bottom: 10px; }
pre { margin: 0; overflow-x: auto; font: 0.84rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
@media print { body { background: #fff; } .card, figure, table { break-inside: avoid; } }
)css";

// A hyphen before a number becomes the sign that it stands for.
std::string with_minus(const std::string& number) { return number.starts_with('-') ? "−" + number.substr(1) : number; }

std::string change_text(Metric metric, double change) {
  return with_minus(higher_is_better(metric) ? fmt::format("{:+.1f}", 100 * change) : fmt::format("{:+.3f}", change));
}

std::string joined(const std::vector<std::string>& items) {
  std::string text;
  for (std::size_t i = 0; i < items.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == items.size() ? " and " : ", ") + items[i];
  }
  return text;
}

std::string tag(std::string_view name, std::string_view css, std::string_view content) {
  return css.empty() ? fmt::format("<{0}>{1}</{0}>", name, content)
                     : fmt::format("<{0} class=\"{1}\">{2}</{0}>", name, css, content);
}

// Draws one study; sections in the order of the page.
class Page {
 public:
  Page(const Study& study, const Analysis& analysis, const ReportContext& context)
      : study_(study), analysis_(analysis), context_(context) {}

  std::string html() const {
    return R"(<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">)"
           R"(<meta name="viewport" content="width=device-width, initial-scale=1"><title>)" +
           escape(title()) + "</title><style>" + style + "</style></head><body><main>" + header() + cards() +
           frontier() + comparison() + matrices() + held() + rates() + reading() + "</main></body></html>\n";
  }

 private:
  const MethodResult& baseline() const { return analysis_.methods[study_.baseline]; }

  // Grey is the baseline's; colours are for what is held against it.
  std::size_t style_of(std::size_t method) const {
    if (method == study_.baseline) return 0;
    return 1 + (method - (method > study_.baseline ? 1 : 0)) % (chart_styles - 1);
  }

  // The comparison to quote: at the lowest of the baseline's new losses that the method reaches.
  static const RatioAt* headline(const MethodResult& method) {
    for (const RatioAt& at : method.at) {
      if (at.ratio) return &at;
    }
    return nullptr;
  }

  std::vector<std::string> task_names() const {
    std::vector<std::string> names;
    for (const Study::Set& task : study_.tasks) names.push_back(task.name);
    return names;
  }

  std::string title() const { return "Learning " + joined(task_names()) + ", and what was kept"; }

  std::string header() const {
    const MethodResult* best = nullptr;
    for (const MethodResult& method : analysis_.methods) {
      const RatioAt* at = headline(method);
      if (at != nullptr && (best == nullptr || *at->ratio < *headline(*best)->ratio)) best = &method;
    }
    std::string out = tag("h1", "", escape(title()));
    if (best != nullptr) {
      const RatioAt& at = *headline(*best);
      out += tag("p", "lead",
                 fmt::format("Having learnt as much (a new loss of {:.3f}), {} forgot {}{} times what {} did.",
                             at.new_loss, escape(best->name), at.upper_bound ? "at most " : "", ratio_number(*at.ratio),
                             escape(baseline().name)));
    }
    out +=
        tag("p", "soft",
            fmt::format("Base model {}, taught {}{} by {}.", escape(context_.base_model), escape(joined(task_names())),
                        study_.tasks.size() > 1 ? " in this order" : "", escape(joined(study_.methods))));
    const std::size_t planned = study_.sequences.size();
    if (analysis_.complete + analysis_.diverged < planned) {
      out += tag(
          "p", "warn",
          fmt::format("{} of {} sequences are complete: these figures are provisional.", analysis_.complete, planned));
    }
    if (analysis_.diverged > 0) {
      out += tag("p", "warn",
                 fmt::format("{} of {} sequences diverged. Learning rates at which one did are left out of frontiers "
                             "and comparisons.",
                             analysis_.diverged, planned));
    }
    return out;
  }

  std::string cards() const {
    std::string out;
    for (std::size_t m = 0; m < analysis_.methods.size(); ++m) {
      out += fmt::format(R"(<div class="card s{}">)", style_of(m)) + card(m) + "</div>";
    }
    return tag("div", "cards", out);
  }

  std::string card(std::size_t m) const {
    const MethodResult& method = analysis_.methods[m];
    std::string out = tag("h3", "", escape(method.name));
    if (baseline().frontier.empty()) {
      out += tag("p", "soft", "nothing to hold it against yet");
    } else if (m == study_.baseline) {
      out += tag("div", "big", "1×") + tag("p", "soft", "the baseline that the others are held against");
    } else if (const RatioAt* at = headline(method)) {
      out += tag("div", "big", escape(ratio_text(*at)) + "×") +
             tag("p", "soft",
                 fmt::format("of {}’s forgetting at the same new loss, {:.3f} ({} at {})", escape(baseline().name),
                             at->new_loss, escape(baseline().name), rate_name(at->learning_rate)));
      if (at != &method.at[0]) {
        out += tag("p", "soft",
                   fmt::format("{}’s lowest, {:.3f}, is not reached", escape(baseline().name), method.at[0].new_loss));
      } else if (method.seed_ratios && method.seed_ratios->values.size() > 1) {
        const auto [least, most] =
            std::minmax_element(method.seed_ratios->values.begin(), method.seed_ratios->values.end());
        out += tag("p", "soft",
                   fmt::format("{} to {} over {} seeds", ratio_number(*least), ratio_number(*most),
                               method.seed_ratios->values.size()));
      }
    } else {
      const bool reached = std::any_of(method.at.begin(), method.at.end(), [](const RatioAt& r) { return r.reached; });
      out += tag("div", "big", "–") + tag("p", "soft",
                                          escape(baseline().name) + (reached ? " forgets nothing to compare with"
                                                                             : "’s new losses are not reached"));
    }
    if (method.best) {
      const RateResult& best = method.rates[*method.best];
      out += tag("p", "",
                 fmt::format("lowest new loss {:.3f} at {}{}", best.new_loss->mean, rate_name(best.learning_rate),
                             best.forgetting ? fmt::format(", forgetting {:+.3f}", best.forgetting->mean) : ""));
    }
    return out;
  }

  std::string legend(bool with_rates) const {
    std::string out;
    for (std::size_t m = 0; m < analysis_.methods.size(); ++m) {
      const MethodResult& method = analysis_.methods[m];
      const std::string rate =
          with_rates && method.best ? " at " + rate_name(method.rates[*method.best].learning_rate) : "";
      out += tag("span", "", draw_marker(style_of(m)) + escape(method.name) + rate);
    }
    return tag("div", "legend", out);
  }

  // Where forgetting begins on the vertical axis: at the base model's loss on the held data; at 0 where there is none.
  double base_old() const {
    double sum = 0;
    for (const SetScore& score : study_.base.held) sum += score.loss / static_cast<double>(study_.base.held.size());
    return sum;
  }

  ChartSeries frontier_series(std::size_t m) const {
    ChartSeries series{.style = style_of(m)};
    for (const RateResult& rate : analysis_.methods[m].rates) {
      if (!rate.new_loss || !rate.forgetting) continue;
      const std::string name = rate_name(rate.learning_rate);
      series.points.push_back(
          {.x = rate.new_loss->mean,
           .y = rate.forgetting->mean + base_old(),
           .x_deviation = rate.new_loss->deviation,
           .y_deviation = rate.forgetting->deviation,
           .label = name,
           .title = fmt::format("{} at {}: new loss {}, old loss {}, forgetting {}", analysis_.methods[m].name, name,
                                spread_text(*rate.new_loss), spread_text(*rate.old_loss),
                                spread_text(*rate.forgetting, 3, true)),
           .strong = rate.on_frontier});
    }
    return series;
  }

  // A learning rate far too high would press all that matters into a corner: points off the frontiers that lie further
  // out than the frontiers are wide are taken away, and named in the caption.
  std::string take_far_points(std::vector<ChartSeries>& all) const {
    double x_least = std::numeric_limits<double>::infinity(), x_most = -x_least, y_most = -x_least;
    for (const ChartSeries& series : all) {
      for (const ChartPoint& point : series.points) {
        if (!point.strong) continue;
        x_least = std::min(x_least, point.x);
        x_most = std::max(x_most, point.x);
        y_most = std::max(y_most, point.y);
      }
    }
    std::string taken;
    const auto far = [&](const ChartPoint& point) {
      const bool out = point.x > 2 * x_most - x_least || point.y > 2 * y_most - base_old();
      if (!point.strong && out) taken += " Beyond the picture: " + escape(point.title) + ".";
      return !point.strong && out;
    };
    for (ChartSeries& series : all) {
      series.points.erase(std::remove_if(series.points.begin(), series.points.end(), far), series.points.end());
    }
    return taken;
  }

  std::string frontier() const {
    FrontierChart chart;
    const bool by_held = !study_.held.empty();
    chart.x_title = study_.tasks.size() > 1 ? "new loss: each task right after it was learnt, mean (lower is better)"
                                            : "new loss: " + study_.tasks[0].name + " (lower is better)";
    chart.y_title = by_held ? "loss on held data in the end (lower is better)" : "forgetting of earlier tasks";
    chart.description = "Old loss against new loss, a line for each method over its learning rates";
    for (std::size_t m = 0; m < analysis_.methods.size(); ++m) chart.series.push_back(frontier_series(m));
    const std::string far = take_far_points(chart.series);
    std::erase_if(chart.series, [](const ChartSeries& series) { return series.points.empty(); });
    if (chart.series.empty()) return "";
    chart.across.push_back({base_old(), by_held ? "base model" : "nothing forgotten"});
    if (!baseline().frontier.empty() && analysis_.methods.size() > 1) {
      chart.down.push_back({baseline().frontier[0].new_loss, "lowest of " + baseline().name});
    }
    return tag("h2", "", "Learning against forgetting") +
           tag("p", "soft",
               "Every point is a learning rate. Down and to the left is better: more learnt, less forgotten. Solid "
               "lines "
               "join the points that no other of the method beats in both; bars are deviations over seeds." +
                   far) +
           tag("figure", "card scroll", legend(false) + draw(chart));
  }

  std::string comparison() const {
    if (analysis_.methods.size() < 2 || baseline().frontier.empty()) return "";
    std::string head = "<th>method</th>", body;
    for (const FrontierPoint& point : baseline().frontier) {
      head += tag("th", "", fmt::format("at {:.3f} ({})", point.new_loss, rate_name(point.learning_rate)));
    }
    head += "<th>over the common range</th>";
    for (std::size_t m = 0; m < analysis_.methods.size(); ++m) {
      if (m == study_.baseline) continue;
      const MethodResult& method = analysis_.methods[m];
      std::string row = tag("th", "", escape(method.name));
      for (const RatioAt& at : method.at) row += tag("td", at.ratio ? "" : "soft", escape(ratio_text(at)));
      row += method.over_range
                 ? tag("td", "",
                       fmt::format("{} ({} to {}; losses {:.3f} to {:.3f})", ratio_number(method.over_range->ratio),
                                   ratio_number(method.over_range->lowest), ratio_number(method.over_range->highest),
                                   method.over_range->from, method.over_range->to))
                 : tag("td", "soft", "none");
      body += tag("tr", "", row);
    }
    return tag("h2", "", "Forgetting at equal new loss") +
           tag("p", "soft",
               fmt::format("As a share of {}’s, at each new loss of {}’s frontier and the learning rate it has there.",
                           escape(baseline().name), escape(baseline().name))) +
           tag("div", "card scroll", table(head, body));
  }

  static std::string table(const std::string& head, const std::string& body) {
    return R"(<table class="list"><thead><tr>)" + head + "</tr></thead><tbody>" + body + "</tbody></table>";
  }

  // The columns of a matrix: the tasks, then the held sets.
  const Study::Set& set_of(std::size_t column) const {
    const std::size_t tasks = study_.tasks.size();
    return column < tasks ? study_.tasks[column] : study_.held[column - tasks];
  }
  double value_of(const RateResult& rate, std::size_t stage, std::size_t column) const {
    const std::size_t tasks = study_.tasks.size();
    return column < tasks ? rate.metrics[stage][column] : rate.held_metrics[stage][column - tasks];
  }

  // Goodness of a value in its column, from the worst (0) to the best (1) of all matrices shown.
  double goodness(std::size_t column, double value) const {
    const bool higher = higher_is_better(set_of(column).metric);
    double least = value, most = value;
    for (const MethodResult& method : analysis_.methods) {
      if (!method.best) continue;
      const RateResult& rate = method.rates[*method.best];
      for (std::size_t i = 0; i < rate.metrics.size(); ++i) {
        const double other = value_of(rate, i, column);
        least = std::min(least, other);
        most = std::max(most, other);
      }
    }
    if (!(most > least)) return 0;
    return higher ? (value - least) / (most - least) : (most - value) / (most - least);
  }

  std::string matrix(const RateResult& rate) const {
    const std::size_t tasks = study_.tasks.size();
    std::string head = "<th></th>", body;
    for (const Study::Set& task : study_.tasks) head += tag("th", "", escape(task.name));
    for (std::size_t h = 0; h < study_.held.size(); ++h) {
      head += tag("th", h == 0 ? "gap" : "", "held: " + escape(study_.held[h].name));
    }
    for (std::size_t i = 0; i < rate.metrics.size(); ++i) {
      std::string row = tag("th", "", i == 0 ? "base model" : "after " + escape(study_.tasks[i - 1].name));
      for (std::size_t j = 0; j < tasks + study_.held.size(); ++j) {
        const bool task = j < tasks;
        const Metric metric = set_of(j).metric;
        const auto at = [&](std::size_t stage) { return value_of(rate, stage, j); };
        const std::size_t since = task ? j + 1 : 0;  // what a later value is held against
        std::string content = value_text(metric, at(i));
        if (i > since) content += tag("small", "", change_text(metric, at(i) - at(since)));
        row +=
            fmt::format(R"td(<td class="{}{}" style="background:rgb(var(--heat) / {:.2f})">{}</td>)td",
                        task && i == since ? "just" : "", j == tasks ? "gap" : "", 0.5 * goodness(j, at(i)), content);
      }
      body += tag("tr", "", row);
    }
    return R"(<table class="heat"><thead><tr>)" + head + "</tr></thead><tbody>" + body + "</tbody></table>";
  }

  std::string matrices() const {
    std::string out;
    for (std::size_t m = 0; m < analysis_.methods.size(); ++m) {
      const MethodResult& method = analysis_.methods[m];
      if (!method.best) continue;
      const RateResult& rate = method.rates[*method.best];
      out += tag(
          "div", "card scroll",
          tag("h3", "",
              fmt::format("{} <span class=\"soft\">at {}</span>", escape(method.name), rate_name(rate.learning_rate))) +
              matrix(rate));
    }
    if (out.empty()) return "";
    return tag("h2", "", "After every task, every task") +
           tag("p", "soft",
               "Means over seeds at each method’s learning rate of lowest new loss. Framed: just learnt. Small: the "
               "change since then (held data: since the base model). Stronger colour is better, by column.") +
           tag("div", "panels", out);
  }

  StageChart held_chart(std::size_t h) const {
    StageChart chart;
    chart.y_title = "loss on " + study_.held[h].name;
    chart.description = chart.y_title + " after each task, a line for each method";
    chart.stages = {"base"};
    for (const Study::Set& task : study_.tasks) chart.stages.push_back(task.name);
    for (std::size_t m = 0; m < analysis_.methods.size(); ++m) {
      const MethodResult& method = analysis_.methods[m];
      if (!method.best) continue;
      const Matrix& losses = method.rates[*method.best].held_losses;
      ChartSeries series{.style = style_of(m)};
      for (std::size_t i = 0; i < losses.size(); ++i) {
        const double loss = losses[i][h];
        series.points.push_back(
            {.x = static_cast<double>(i),
             .y = loss,
             .label = fmt::format("{:.2f}", loss),
             .title = fmt::format("{}, {}{}: {:.3f}", method.name, i > 0 ? "after " : "", chart.stages[i], loss)});
      }
      chart.series.push_back(std::move(series));
    }
    return chart;
  }

  std::string held() const {
    std::string out;
    for (std::size_t h = 0; h < study_.held.size(); ++h) {
      const StageChart chart = held_chart(h);
      if (!chart.series.empty()) out += tag("figure", "scroll", draw(chart));
    }
    if (out.empty()) return "";
    return tag("h2", "", "Held data, task by task") +
           tag("p", "soft",
               "Loss on what no task teaches, after each task, at each method’s learning rate of lowest new loss.") +
           tag("div", "card", legend(true) + tag("div", "panels", out));
  }

  std::string rates() const {
    const std::string head =
        "<th>method</th><th>learning rate</th><th>seeds</th><th>new loss</th><th>old loss</th><th>forgetting</th>"
        "<th>average</th><th>backward transfer</th>";
    const auto cell = [](const std::optional<Spread>& spread, bool sign = false) {
      if (!spread) return tag("td", "soft", "–");
      std::string text = with_minus(sign ? fmt::format("{:+.3f}", spread->mean) : fmt::format("{:.3f}", spread->mean));
      if (spread->values.size() > 1) text += tag("span", "deviation", fmt::format(" ± {:.3f}", spread->deviation));
      return tag("td", "", text);
    };
    std::string body;
    for (const MethodResult& method : analysis_.methods) {
      for (std::size_t r = 0; r < method.rates.size(); ++r) {
        const RateResult& rate = method.rates[r];
        const std::string seeds = rate.diverged.empty()
                                      ? fmt::format("{}", rate.seeds.size())
                                      : fmt::format("{}, {} diverged", rate.seeds.size(), rate.diverged.size());
        body += tag("tr", method.best == r ? "best" : "",
                    tag("th", "", r == 0 ? escape(method.name) : "") + tag("td", "", rate_name(rate.learning_rate)) +
                        tag("td", "", seeds) + cell(rate.new_loss) + cell(rate.old_loss) + cell(rate.forgetting, true) +
                        cell(rate.average_shown()) + cell(rate.transfer_shown(), true));
      }
    }
    return tag("h2", "", "Every learning rate") +
           tag("p", "soft", "Bold: the method’s lowest new loss. ± is the deviation over seeds.") +
           tag("div", "card scroll", table(head, body));
  }

  std::string reading() const {
    std::string terms;
    for (const Definition& definition : definitions(study_)) {
      terms += tag("dt", "", escape(definition.term)) + tag("dd", "", escape(definition.meaning));
    }
    return tag("h2", "", "How to read this") + tag("div", "card", tag("dl", "", terms)) +
           R"(<details class="card"><summary>Configuration</summary><pre>)" + escape(context_.config) +
           "</pre></details>";
  }

  const Study& study_;
  const Analysis& analysis_;
  const ReportContext& context_;
};

}  // namespace

std::string report_html(const Study& study, const Analysis& analysis, const ReportContext& context) {
  return Page(study, analysis, context).html();
}

}  // namespace inlay::train
