#include "report/line_chart.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "report/html_page.h"

namespace inlay::report {

using namespace chart;
using Points = std::vector<std::pair<double, double>>;

namespace {

Points finite(const Points& points) {
  Points kept;
  for (const auto& point : points) {
    if (std::isfinite(point.first) && std::isfinite(point.second)) kept.push_back(point);
  }
  return kept;
}

// At most 2·columns points: of each column the least and the greatest, in their order.
Points thinned(const Points& points, std::size_t columns) {
  if (points.size() <= 2 * columns) return points;
  Points kept;
  for (std::size_t c = 0; c < columns; ++c) {
    const auto from = points.begin() + static_cast<std::ptrdiff_t>(points.size() * c / columns),
               to = points.begin() + static_cast<std::ptrdiff_t>(points.size() * (c + 1) / columns);
    auto [least, most] =
        std::minmax_element(from, to, [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most < least) std::swap(least, most);
    kept.push_back(*least);
    if (most != least) kept.push_back(*most);
  }
  return kept;
}

std::string draw_series(const LineSeries& series, const Points& points, const Axis& x, const Axis& y) {
  Points pixels;
  for (const auto& [at, value] : points) pixels.emplace_back(x.pixel(at), y.pixel(value));
  std::string out = fmt::format(R"(<g class="{}">)", style_class(series.style)) +
                    polyline(pixels, series.faint ? "strong behind" : "strong");
  const bool marked = series.dots || pixels.size() == 1;  // a line of one point is none
  for (std::size_t i = 0; marked && i < pixels.size(); ++i) {
    out += fmt::format(R"(<g><title>{}</title><circle cx="{:.1f}" cy="{:.1f}" r="4" class="mark"/></g>)",
                       escape(fmt::format("{} at step {:.0f}: {:.6g}", series.name, points[i].first, points[i].second)),
                       pixels[i].first, pixels[i].second);
  }
  return out + "</g>";
}

}  // namespace

std::string draw(const LineChart& chart) {
  constexpr double width = 440, height = 270;
  constexpr Box plot{66, 14, width - 14, height - 50};
  std::vector<Points> drawn;
  std::vector<double> xs, ys;
  if (chart.from_zero) ys.push_back(0);
  for (const LineSeries& series : chart.series) {
    drawn.push_back(thinned(finite(series.points), static_cast<std::size_t>(plot.right - plot.left)));
    for (const auto& [x, y] : drawn.back()) {
      xs.push_back(x);
      ys.push_back(y);
    }
  }
  if (xs.empty()) return "";
  const Axis x = make_axis(xs, plot.left, plot.right, 6), y = make_axis(ys, plot.bottom, plot.top, 5);
  std::string out = opening(width, height, chart.description) + y_axis(y, plot, chart.y_title);
  for (const double tick : x.ticks.at) {
    if (tick != std::floor(tick) || tick < 0) continue;  // there is no half a step
    out += text(x.pixel(tick), plot.bottom + 20, "middle", "tick", fmt::format("{:.0f}", tick));
  }
  out += text((plot.left + plot.right) / 2, height - 10, "middle", "title", "step");
  for (std::size_t i = 0; i < drawn.size(); ++i) out += draw_series(chart.series[i], drawn[i], x, y);
  return out + "</svg>";
}

Points smoothed(const Points& points, std::size_t groups) {
  const Points all = finite(points);
  if (all.size() <= groups) return all;
  Points means;
  for (std::size_t g = 0; g < groups; ++g) {
    const std::size_t from = all.size() * g / groups, to = all.size() * (g + 1) / groups;
    double x = 0, y = 0;
    for (std::size_t i = from; i < to; ++i) {
      x += all[i].first;
      y += all[i].second;
    }
    const auto count = static_cast<double>(to - from);
    means.emplace_back(x / count, y / count);
  }
  return means;
}

}  // namespace inlay::report
