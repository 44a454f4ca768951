#include "study/page.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "report/html_page.h"
#include "study/charts.h"
#include "study/options.h"
#include "study/results.h"

namespace inlay::study {

using namespace report;  // the parts of a page

namespace {

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

// Draws one study; sections in the order of the page.
class Page {
 public:
  Page(const Study& study, const Analysis& analysis, const ReportContext& context)
      : study_(study), analysis_(analysis), context_(context) {}

  std::string html() const {
    return html_page(title(),
                     header() + cards() + frontier() + comparison() + matrices() + held() + rates() + reading());
  }

 private:
  const MethodResult& baseline() const { return analysis_.methods[study_.baseline]; }

  // Grey is the baseline's; colours are for what is held against it, and come again with other shapes.
  std::size_t style_of(std::size_t method) const {
    if (method == study_.baseline) return 0;
    const std::size_t number = method - (method > study_.baseline ? 1 : 0), colours = chart_styles - 1;
    return 1 + number % colours + chart_styles * (number / colours);
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
                 fmt::format("At the same new loss ({:.3f}), {} forgot {}{} times as much as {}.", at.new_loss,
                             escape(best->name), at.upper_bound ? "at most " : "", ratio_number(*at.ratio),
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
      out += fmt::format(R"(<div class="card {}">)", chart::style_class(style_of(m))) + card(m) + "</div>";
    }
    return tag("div", "cards", out);
  }

  std::string card(std::size_t m) const {
    const MethodResult& method = analysis_.methods[m];
    std::string out = tag("h3", "", escape(method.name));
    if (baseline().frontier.empty()) {
      out += tag("p", "soft", "nothing to compare it with yet");
    } else if (m == study_.baseline) {
      out += tag("div", "big", "1×") + tag("p", "soft", "the baseline that the others are compared with");
    } else if (const RatioAt* at = headline(method)) {
      out += tag("div", "big", escape(ratio_text(*at)) + "×") +
             tag("p", "soft",
                 fmt::format("of {}’s forgetting at the same new loss, {:.3f} ({} at {})", escape(baseline().name),
                             at->new_loss, escape(baseline().name), setting_name(*at)));
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
                 fmt::format("lowest new loss {:.3f} at {}{}", best.new_loss->mean, setting_name(best),
                             best.forgetting ? fmt::format(", forgetting {:+.3f}", best.forgetting->mean) : ""));
    }
    return out;
  }

  std::string legend(bool with_rates) const {
    std::string out;
    for (std::size_t m = 0; m < analysis_.methods.size(); ++m) {
      const MethodResult& method = analysis_.methods[m];
      const std::string rate = with_rates && method.best ? " at " + setting_name(method.rates[*method.best]) : "";
      out += tag("span", "", draw_marker(style_of(m)) + escape(method.name) + rate);
    }
    return tag("div", "legend", out);
  }

  // Where forgetting begins on the vertical axis: at the base model's loss on the held data; at 0 where there is none.
  double base_old() const {
    if (!study_.counts_held()) return 0;
    std::vector<double> losses;
    for (const SetScore& score : study_.base.held) losses.push_back(score.loss);
    return mean_held(study_, losses);
  }

  ChartSeries frontier_series(std::size_t m) const {
    ChartSeries series{.style = style_of(m)};
    for (const RateResult& rate : analysis_.methods[m].rates) {
      if (!rate.new_loss || !rate.forgetting) continue;
      const std::string name = setting_name(rate);
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

  // A learning rate far too high, or a method that learns far less, would press all that matters into a corner: points
  // that lie further out than the baseline's frontier is wide are taken away, and named in the caption.
  std::string take_far_points(std::vector<ChartSeries>& all) const {
    double x_least = std::numeric_limits<double>::infinity(), x_most = -x_least, y_most = -x_least;
    const auto include = [&](const ChartSeries& series) {
      for (const ChartPoint& point : series.points) {
        if (!point.strong) continue;
        x_least = std::min(x_least, point.x);
        x_most = std::max(x_most, point.x);
        y_most = std::max(y_most, point.y);
      }
    };
    if (study_.baseline < all.size()) include(all[study_.baseline]);
    if (!(x_most > x_least)) std::ranges::for_each(all, include);
    std::string taken;
    const auto far = [&](const ChartPoint& point) {
      const bool out = point.x > 2 * x_most - x_least || point.y > 2 * y_most - base_old();
      if (out) taken += (taken.empty() ? "" : "; ") + escape(point.title);
      return out;
    };
    for (ChartSeries& series : all) std::erase_if(series.points, far);
    return taken.empty() ? "" : " Outside the chart: " + taken + ".";
  }

  std::string frontier() const {
    FrontierChart chart;
    const bool by_held = study_.counts_held();
    chart.x_title = study_.tasks.size() > 1 ? "new loss: each task right after it was learned, mean (lower is better)"
                                            : "new loss: " + study_.tasks[0].name + " (lower is better)";
    chart.y_title = by_held ? "loss on held data at the end (lower is better)" : "forgetting of earlier tasks";
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
               "Every point is a learning rate, followed by a share if the method keeps only that much of what was "
               "learned. Down and to the left is better: more learned, less forgotten. Solid lines join the "
               "points that no other point of the method beats in both; bars are deviations over seeds." +
                   far) +
           tag("figure", "card scroll", legend(false) + draw(chart));
  }

  std::string comparison() const {
    if (analysis_.methods.size() < 2 || baseline().frontier.empty()) return "";
    std::string head = "<th>method</th>", body;
    for (const FrontierPoint& point : baseline().frontier) {
      head += tag("th", "", fmt::format("at {:.3f} ({})", point.new_loss, setting_name(point)));
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
          tag("h3", "", fmt::format("{} <span class=\"soft\">at {}</span>", escape(method.name), setting_name(rate))) +
              matrix(rate));
    }
    if (out.empty()) return "";
    return tag("h2", "", "After every task, every task") +
           tag("p", "soft",
               "Means over seeds at each method’s learning rate of lowest new loss. Framed: just learned. Small: the "
               "change since then (held data: since the base model). Stronger colour is better, within a column.") +
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
                    tag("th", "", r == 0 ? escape(method.name) : "") + tag("td", "", setting_name(rate)) +
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
           configuration(context_.config);
  }

  const Study& study_;
  const Analysis& analysis_;
  const ReportContext& context_;
};

}  // namespace

std::string report_html(const Study& study, const Analysis& analysis, const ReportContext& context) {
  return Page(study, analysis, context).html();
}

}  // namespace inlay::study
