#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/arena.h"
#include "core/text.h"
#include "report/html_page.h"
#include "report/line_chart.h"
#include "report/run_report.h"

namespace inlay::report {

namespace {

using Step = RunRecord::Step;

// Bytes as a person reads them; nothing where they are not known.
std::string bytes_text(double bytes) {
  return std::isfinite(bytes) && bytes >= 0 ? format_bytes(static_cast<std::uint64_t>(bytes)) : "–";
}

std::string number_text(double value, int decimals) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, decimals) : "–";
}

// Draws one run; sections in the order of the page.
class RunPage {
 public:
  RunPage(const RunRecord& run, Page kind) : run_(run), live_(kind == Page::live && !run.finished) {}

  std::string html() const {
    return html_page("Run " + run_.name,
                     header() + cards() + charts() + answers() + samples() + evaluations() + data() + facts() + setup(),
                     live_ ? R"(<meta http-equiv="refresh" content="5">)" : "");
  }

 private:
  std::string header() const {
    std::string out = tag("h1", "", escape(run_.name));
    if (!run_.base_model.empty()) out += tag("p", "soft", "Fine-tuned from " + escape(run_.base_model) + ".");
    if (!run_.began.empty()) {
      out += tag("p", "soft",
                 escape(fmt::format("{} to {} UTC{}", minute_text(run_.began), minute_text(run_.last),
                                    run_.versions.empty() ? "" : ", by Inlay " + join(run_.versions, ", then "))));
    }
    if (run_.steps.empty()) return out + tag("p", "warn", "No step is complete yet: there is nothing to show.");
    if (!run_.finished) {
      const std::string of = run_.total_steps > 0 ? " of " + format_count(run_.total_steps) : "";
      out += tag("p", "warn",
                 fmt::format("The run is not complete: this is its state after step {}{}.{}",
                             format_count(run_.steps.back().step), of,
                             live_ ? " The page refreshes itself every few seconds." : ""));
    }
    return out;
  }

  // "2026-11-16T12:03:37.250Z" as people write it.
  static std::string minute_text(const std::string& time) {
    return time.size() >= 16 && time[10] == 'T' ? time.substr(0, 10) + " " + time.substr(11, 5) : time;
  }

  static std::string card(std::size_t style, const char* name, const std::string& value, const std::string& note) {
    return fmt::format(R"(<div class="card s{}">)", style) + tag("h3", "", name) + tag("div", "big", value) +
           tag("p", "soft", note) + "</div>";
  }

  std::string cards() const {
    if (run_.steps.empty()) return "";
    const Step &first = run_.steps.front(), &last = run_.steps.back();
    std::string out = card(1, "loss", number_text(last.loss, 3),
                           fmt::format("{} at step {}", number_text(first.loss, 3), format_count(first.step)));
    if (!run_.evaluations.empty()) {
      const auto& best = *std::min_element(run_.evaluations.begin(), run_.evaluations.end(),
                                           [](const auto& a, const auto& b) { return a.loss < b.loss; });
      // The result's, where it is not the last step's model.
      const auto of_result =
          std::ranges::find_if(run_.evaluations, [&](const auto& e) { return e.step == run_.result_step; });
      const RunRecord::Evaluation& end = of_result != run_.evaluations.end() ? *of_result : run_.evaluations.back();
      std::string note = &best == &end
                             ? std::string("the lowest of the run")
                             : fmt::format("lowest {} at step {}", number_text(best.loss, 3), format_count(best.step));
      if (&end != &run_.evaluations.back()) {
        note = fmt::format("of step {}, whose model is the result", format_count(end.step));
      }
      out += card(2, "evaluation loss", number_text(end.loss, 3), note);
    }
    double memory = 0;
    for (const Step& step : run_.steps) memory = std::fmax(memory, step.device_bytes);
    out += card(3, "steps", format_count(last.step),
                std::isfinite(last.seconds) ? "in " + format_duration(last.seconds) : "");
    out += card(4, "tokens per second", median_speed(), "the median of the steps");
    out += card(5, "device memory", bytes_text(memory), "at its peak");
    return tag("div", "cards", out);
  }

  std::string median_speed() const {
    std::vector<double> speeds;
    for (const Step& step : run_.steps) {
      if (std::isfinite(step.tokens_per_second)) speeds.push_back(step.tokens_per_second);
    }
    if (speeds.empty()) return "–";
    const auto middle = speeds.begin() + static_cast<std::ptrdiff_t>(speeds.size() / 2);
    std::nth_element(speeds.begin(), middle, speeds.end());
    return format_count(std::llround(*middle));
  }

  // One measure of the steps, in units of `unit`.
  std::vector<std::pair<double, double>> over_steps(double Step::*member, double unit = 1) const {
    std::vector<std::pair<double, double>> points;
    for (const Step& step : run_.steps) points.emplace_back(static_cast<double>(step.step), step.*member / unit);
    return points;
  }

  double greatest(double Step::*member) const {
    double most = 0;
    for (const Step& step : run_.steps) most = std::fmax(most, std::isfinite(step.*member) ? step.*member : 0);
    return most;
  }

  static std::string figure(const LineChart& chart) {
    const std::string drawing = draw(chart);
    if (drawing.empty()) return "";
    std::string legend;
    for (const LineSeries& series : chart.series) {
      legend += fmt::format(R"(<span class="s{}"><i class="swatch{}"></i>{}</span>)", series.style,
                            series.faint ? " behind" : "", escape(series.name));
    }
    return tag("figure", "card scroll", tag("div", "legend", legend) + drawing);
  }

  // Noise behind, its course before it.
  static void add_noisy(LineChart& chart, std::size_t style, const std::string& name,
                        const std::vector<std::pair<double, double>>& points) {
    constexpr std::size_t least = 24, most = 60, per_group = 4;
    const std::size_t groups = std::min(most, points.size() / per_group);
    const bool noisy = points.size() >= least;
    chart.series.push_back({.style = style, .name = name, .points = points, .faint = noisy});
    if (noisy) {
      chart.series.push_back({.style = style, .name = name + ", averaged", .points = smoothed(points, groups)});
    }
  }

  std::string losses() const {
    LineChart chart{.y_title = "loss", .description = "Training loss over the steps"};
    add_noisy(chart, 1, "loss", over_steps(&Step::loss));
    if (!run_.evaluations.empty()) {
      chart.description = "Training and evaluation loss over the steps";
      LineSeries evaluated{.style = 2, .name = "evaluation loss", .dots = true};
      for (const auto& e : run_.evaluations) evaluated.points.emplace_back(static_cast<double>(e.step), e.loss);
      chart.series.push_back(std::move(evaluated));
    }
    return figure(chart);
  }

  std::string rates() const {
    // In units of a power of ten, so that the axis has short numbers.
    const double most = greatest(&Step::learning_rate);
    const int power = most > 0 ? static_cast<int>(std::floor(std::log10(most))) : 0;
    LineChart chart{.y_title = power == 0 ? "learning rate" : fmt::format("learning rate (in 1e{})", power),
                    .description = "Learning rate over the steps",
                    .from_zero = true};
    chart.series.push_back(
        {.style = 3, .name = "learning rate", .points = over_steps(&Step::learning_rate, std::pow(10.0, power))});
    return figure(chart);
  }

  std::string norms() const {
    LineChart chart{.y_title = "gradient norm", .description = "Gradient norms over the steps", .from_zero = true};
    add_noisy(chart, 4, "gradient norm", over_steps(&Step::grad_norm));
    // Before OSFT's projection; without it the two are one.
    const bool differ = std::any_of(run_.steps.begin(), run_.steps.end(), [](const Step& step) {
      return std::isfinite(step.raw_grad_norm) && step.raw_grad_norm != step.grad_norm;
    });
    if (differ) add_noisy(chart, 5, "before the projection", over_steps(&Step::raw_grad_norm));
    return figure(chart);
  }

  std::string speed() const {
    const bool thousands = greatest(&Step::tokens_per_second) >= 1e5;
    LineChart chart{.y_title = thousands ? "thousand tokens per second" : "tokens per second",
                    .description = "Throughput over the steps",
                    .from_zero = true};
    add_noisy(chart, 6, "tokens per second", over_steps(&Step::tokens_per_second, thousands ? 1e3 : 1));
    return figure(chart);
  }

  std::string memory() const {
    constexpr double mib = 1 << 20, gib = 1 << 30;
    const double most = std::max(greatest(&Step::device_bytes), greatest(&Step::host_bytes));
    const double unit = most >= gib ? gib : mib;
    LineChart chart{
        .y_title = unit == gib ? "GiB" : "MiB", .description = "Peak memory so far over the steps", .from_zero = true};
    chart.series.push_back(
        {.style = 5, .name = "device, peak so far", .points = over_steps(&Step::device_bytes, unit)});
    chart.series.push_back({.style = 0, .name = "host, peak so far", .points = over_steps(&Step::host_bytes, unit)});
    return figure(chart);
  }

  std::string charts() const {
    const std::string drawn = losses() + rates() + norms() + speed() + memory();
    return drawn.empty() ? "" : tag("h2", "", "Over the steps") + tag("div", "charts", drawn);
  }

  // What the model answered as it learned: of very many times some, the first and the last among them.
  std::string answers() const {
    if (run_.answers.empty()) return "";
    constexpr std::size_t most = 12;
    std::string out;
    for (const auto& [prompt, answers] : run_.answers) {
      const std::size_t shown = std::min(most, answers.size());
      std::string body;
      for (std::size_t i = 0; i < shown; ++i) {
        const RunRecord::Answer& answer = answers[shown > 1 ? i * (answers.size() - 1) / (shown - 1) : 0];
        body += tag("tr", "", tag("th", "", format_count(answer.step)) + tag("td", "", text_block(answer.text)));
      }
      out += tag("div", "card sample",
                 tag("p", "prompt", escape(prompt)) +
                     R"(<table class="list answers"><thead><tr><th>step</th><th>answer</th></tr></thead><tbody>)" +
                     body + "</tbody></table>");
    }
    return tag("h2", "", "Answers while it learned") +
           tag("p", "soft", "What the model said to sample_prompts, always with the most likely token.") + out;
  }

  std::string samples() const {
    if (run_.samples.empty()) return "";
    std::string out;
    for (const RunSample& sample : run_.samples) {
      out += tag("div", "card sample",
                 tag("p", "prompt", escape(sample.prompt)) +
                     tag("div", "pair",
                         tag("div", "", tag("h3", "soft", "before") + text_block(sample.before)) +
                             tag("div", "", tag("h3", "soft", "after") + text_block(sample.after))));
    }
    return tag("h2", "", "Before and after") +
           tag("p", "soft",
               "How the base model and the trained one continue the same prompt, always with the most likely token.") +
           out;
  }

  static std::string text_block(const std::string& text) {
    const std::size_t begin = std::min(text.find_first_not_of(" \n"), text.size());
    return begin == text.size() ? tag("p", "soft", "(nothing)") : tag("p", "text", escape(text.substr(begin)));
  }

  std::string evaluations() const {
    if (run_.evaluations.empty()) return "";
    // A table is for reading: of very many evaluations the last ones.
    constexpr std::size_t most = 50;
    const std::size_t skipped = run_.evaluations.size() > most ? run_.evaluations.size() - most : 0;
    std::string body;
    for (std::size_t i = skipped; i < run_.evaluations.size(); ++i) {
      const auto& e = run_.evaluations[i];
      body += tag("tr", "",
                  tag("th", "", format_count(e.step)) + tag("td", "", number_text(e.loss, 4)) +
                      tag("td", "", number_text(std::exp(e.loss), 2)) +
                      tag("td", "", number_text(100 * e.accuracy, 1) + " %"));
    }
    return tag("h2", "", "Evaluations") +
           (skipped > 0 ? tag("p", "soft", fmt::format("The last {} of {}.", most, run_.evaluations.size())) : "") +
           tag("div", "card scroll",
               R"(<table class="list"><thead><tr><th>step</th><th>loss</th><th>perplexity</th><th>token accuracy</th>)"
               "</tr></thead><tbody>" +
                   body + "</tbody></table>");
  }

  std::string data() const {
    if (run_.data.empty()) return "";
    std::string list;
    for (const RunRecord::Fact& fact : run_.data) {
      list += tag("dt", "", escape(fact.name)) + tag("dd", "", escape(fact.value));
    }
    if (!run_.steps.empty() && std::isfinite(run_.steps.back().tokens)) {
      list += tag("dt", "", "read so far") +
              tag("dd", "",
                  fmt::format("{} tokens, in epoch {}", format_count(std::llround(run_.steps.back().tokens)),
                              format_count(run_.steps.back().epoch + 1)));
    }
    return tag("h2", "", "Data") + tag("div", "card", tag("dl", "", list));
  }

  std::string facts() const {
    if (run_.facts.empty()) return "";
    std::string list;
    for (const RunRecord::Fact& fact : run_.facts) {
      list += tag("dt", "", escape(fact.name)) + tag("dd", "", escape(fact.value));
    }
    return tag("h2", "", "The run in figures") + tag("div", "card", tag("dl", "", list));
  }

  std::string setup() const { return run_.config.empty() ? "" : configuration(run_.config); }

  const RunRecord& run_;
  bool live_;
};

}  // namespace

std::string run_html(const RunRecord& run, Page page) { return RunPage(run, page).html(); }

}  // namespace inlay::report
