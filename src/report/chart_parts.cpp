#include "report/chart_parts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <fmt/format.h>

#include "report/html_page.h"

namespace inlay::report::chart {

Ticks round_ticks(double lo, double hi, int wanted) {
  const double power = std::pow(10.0, std::floor(std::log10((hi - lo) / wanted)));
  double step = 0, nearest = std::numeric_limits<double>::infinity();
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    const double miss = std::abs(std::log((hi - lo) / (factor * power) / wanted));
    if (miss < nearest) {
      nearest = miss;
      step = factor * power;
    }
  }
  Ticks ticks;
  ticks.decimals = std::max(0, -static_cast<int>(std::floor(std::log10(step) + 1e-9)));
  const auto first = static_cast<std::int64_t>(std::ceil(lo / step - 1e-9));
  const auto last = static_cast<std::int64_t>(std::floor(hi / step + 1e-9));
  for (std::int64_t i = first; i <= last; ++i) ticks.at.push_back(static_cast<double>(i) * step);
  return ticks;
}

double text_width(std::string_view text, double per_character) {
  const auto count =
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
  return per_character * static_cast<double>(count);
}

Axis make_axis(std::vector<double> values, double from, double to, int wanted) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  double lo = values.empty() ? 0 : *least, hi = values.empty() ? 1 : *most;
  if (!(hi > lo)) {  // one value: room around it
    const double room = std::max(std::abs(lo) * 0.1, 0.1);
    lo -= room;
    hi += room;
  }
  const double margin = 0.07 * (hi - lo);
  lo -= margin;
  hi += margin;
  return {.lo = lo, .hi = hi, .from = from, .to = to, .ticks = round_ticks(lo, hi, wanted)};
}

std::string text(double x, double y, std::string_view anchor, std::string_view css, std::string_view content) {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>)", x, y, anchor, css,
                     escape(content));
}

std::string line(double x1, double y1, double x2, double y2, std::string_view css) {
  return fmt::format(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>)", x1, y1, x2, y2, css);
}

std::string polyline(const std::vector<std::pair<double, double>>& points, std::string_view css) {
  if (points.size() < 2) return "";
  std::string list;
  for (const auto& [x, y] : points) list += fmt::format("{:.1f},{:.1f} ", x, y);
  return fmt::format(R"(<polyline points="{}" class="{}"/>)", list, css);
}

std::string style_class(std::size_t style) { return fmt::format("s{}", style % chart_styles); }

std::string opening(double width, double height, std::string_view description) {
  return fmt::format(R"(<svg viewBox="0 0 {0:.0f} {1:.0f}" style="--w:{0:.0f}px" role="img" aria-label="{2}" )"
                     R"(xmlns="http://www.w3.org/2000/svg">)",
                     width, height, escape(description));
}

std::string y_axis(const Axis& y, const Box& plot, std::string_view title) {
  std::string out;
  for (const double tick : y.ticks.at) {
    const double at = y.pixel(tick);
    out += line(plot.left, at, plot.right, at, "grid");
    out += text(plot.left - 8, at + 4, "end", "tick", fmt::format("{:.{}f}", tick, y.ticks.decimals));
  }
  const double middle = (plot.top + plot.bottom) / 2;
  return out +
         fmt::format(R"svg(<text transform="translate(16 {:.1f}) rotate(-90)" text-anchor="middle" class="title">)svg"
                     "{}</text>",
                     middle, escape(title));
}

}  // namespace inlay::report::chart
