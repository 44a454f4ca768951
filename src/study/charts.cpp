#include "study/charts.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "report/html_page.h"

namespace inlay::study {

using namespace report::chart;

namespace {

// As much of a text as there is room for; the whole stands in tooltips and tables.
std::string shortened(const std::string& text, double room) {
  const auto most = static_cast<std::size_t>(std::max(3.0, room / 6.8));
  return text.size() <= most ? text : text.substr(0, most - 1) + "…";
}

// Shapes differ as well as colours, for eyes and printers that do not tell colours apart.
std::string marker(std::size_t style, double x, double y, bool strong) {
  const char* css = strong ? "mark" : "mark faint";
  const auto polygon = [&](std::initializer_list<std::pair<double, double>> corners) {
    std::string list;
    for (const auto& [dx, dy] : corners) list += fmt::format("{:.1f},{:.1f} ", x + dx, y + dy);
    return fmt::format(R"(<polygon points="{}" class="{}"/>)", list, css);
  };
  constexpr std::size_t shapes = report::chart_styles;
  switch ((style % shapes + style / shapes * 3) % shapes) {  // where a colour comes again, another shape
    case 0: return fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="5" class="{}"/>)", x, y, css);
    case 1: return polygon({{-4.6, -4.6}, {4.6, -4.6}, {4.6, 4.6}, {-4.6, 4.6}});
    case 2: return polygon({{0, -6}, {5.6, 4.4}, {-5.6, 4.4}});
    case 3: return polygon({{0, -6.4}, {6.4, 0}, {0, 6.4}, {-6.4, 0}});
    case 4: return polygon({{0, 6}, {5.6, -4.4}, {-5.6, -4.4}});
    case 5: return polygon({{-6, 0}, {-3, -5.2}, {3, -5.2}, {6, 0}, {3, 5.2}, {-3, 5.2}});
    default:
      return polygon(
          {{-2, -6}, {2, -6}, {2, -2}, {6, -2}, {6, 2}, {2, 2}, {2, 6}, {-2, 6}, {-2, 2}, {-6, 2}, {-6, -2}, {-2, -2}});
  }
}

// Where a point's label goes: the first of a ring of places that covers no other label, point or line, or the least
// bad.
class LabelPlacer {
 public:
  explicit LabelPlacer(Box plot) : plot_(plot) {}

  void avoid(const Box& box) { taken_.push_back(box); }
  void avoid_point(double x, double y) { taken_.push_back({x - 7, y - 7, x + 7, y + 7}); }
  void avoid_line(double x1, double y1, double x2, double y2) {
    const double length = std::hypot(x2 - x1, y2 - y1);
    for (double at = 0; at < length; at += 5) {
      const double share = at / length;
      line_points_.emplace_back(x1 + share * (x2 - x1), y1 + share * (y2 - y1));
    }
  }

  std::string place(double x, double y, std::string_view label) {
    const double width = text_width(label);
    Box best;
    double best_cost = 1e30;
    for (const double distance : {10.0, 16.0, 24.0, 34.0}) {
      for (int step = 0; step < 12; ++step) {
        const double angle = (-45.0 + 30.0 * step) * 3.14159265358979 / 180;
        const double cx = x + std::cos(angle) * (distance + width / 2), cy = y + std::sin(angle) * (distance + 2);
        const Box box{cx - width / 2, cy - 7, cx + width / 2, cy + 7};
        const double cost = cost_of(box) + 0.6 * distance + 0.4 * step;
        if (cost < best_cost) {
          best_cost = cost;
          best = box;
        }
      }
    }
    taken_.push_back(best);
    return text((best.left + best.right) / 2, best.bottom - 3, "middle", "label", label);
  }

 private:
  double cost_of(const Box& box) const {
    double cost = 0;
    for (const Box& other : taken_) cost += 10 * box.overlap(other);
    for (const auto& [x, y] : line_points_) cost += box.contains(x, y) ? 12 : 0;
    const bool inside = plot_.contains(box.left, box.top) && plot_.contains(box.right, box.bottom);
    return cost + (inside ? 0 : 2000);
  }

  Box plot_;
  std::vector<Box> taken_;
  std::vector<std::pair<double, double>> line_points_;
};

std::string whiskers(const ChartPoint& point, const Axis& x, const Axis& y) {
  const double cx = x.pixel(point.x), cy = y.pixel(point.y);
  std::string out;
  if (point.x_deviation > 0) {
    out += line(x.pixel(point.x - point.x_deviation), cy, x.pixel(point.x + point.x_deviation), cy, "whisker");
  }
  if (point.y_deviation > 0) {
    out += line(cx, y.pixel(point.y - point.y_deviation), cx, y.pixel(point.y + point.y_deviation), "whisker");
  }
  return out;
}

// The strong points by rising x: the frontier.
std::vector<std::pair<double, double>> frontier_pixels(const ChartSeries& series, const Axis& x, const Axis& y) {
  std::vector<std::pair<double, double>> pixels;
  for (const ChartPoint& point : series.points) {
    if (point.strong) pixels.emplace_back(x.pixel(point.x), y.pixel(point.y));
  }
  std::sort(pixels.begin(), pixels.end());
  return pixels;
}

std::string marked(const ChartPoint& point, std::size_t style, double x, double y) {
  return fmt::format("<g><title>{}</title>{}</g>", report::escape(point.title), marker(style, x, y, point.strong));
}

// Ends of lines, pushed apart until none covers another.
std::vector<double> spread_apart(std::vector<double> wanted, double gap, double top, double bottom) {
  std::vector<std::size_t> order(wanted.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return wanted[a] < wanted[b]; });
  double last = top - gap;
  for (const std::size_t i : order) last = wanted[i] = std::max(wanted[i], last + gap);
  double next = bottom + gap;
  for (auto i = order.rbegin(); i != order.rend(); ++i) next = wanted[*i] = std::min(wanted[*i], next - gap);
  return wanted;
}

}  // namespace

std::string draw_marker(std::size_t style) {
  return fmt::format(R"(<svg class="key {}" viewBox="0 0 28 14" aria-hidden="true">{}{}</svg>)", style_class(style),
                     line(1, 7, 27, 7, "strong"), marker(style, 14, 7, true));
}

std::string draw(const FrontierChart& chart) {
  constexpr double width = 918, height = 500;
  constexpr Box plot{72, 34, width - 20, height - 54};
  std::vector<double> xs, ys;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      xs.insert(xs.end(), {point.x - point.x_deviation, point.x + point.x_deviation});
      ys.insert(ys.end(), {point.y - point.y_deviation, point.y + point.y_deviation});
    }
  }
  for (const ChartRule& rule : chart.across) ys.push_back(rule.at);
  for (const ChartRule& rule : chart.down) xs.push_back(rule.at);
  const Axis x = make_axis(xs, plot.left, plot.right, 8), y = make_axis(ys, plot.bottom, plot.top, 6);

  std::string out = opening(width, height, chart.description) + y_axis(y, plot, chart.y_title);
  for (const double tick : x.ticks.at) {
    out += line(x.pixel(tick), plot.top, x.pixel(tick), plot.bottom, "grid");
    out += text(x.pixel(tick), plot.bottom + 20, "middle", "tick", fmt::format("{:.{}f}", tick, x.ticks.decimals));
  }
  out += text((plot.left + plot.right) / 2, height - 10, "middle", "title", chart.x_title);

  LabelPlacer labels(plot);
  for (const ChartRule& rule : chart.across) {
    const double at = y.pixel(rule.at);
    out += line(plot.left, at, plot.right, at, "rule") + text(plot.right - 4, at - 6, "end", "note", rule.label);
    labels.avoid({plot.right - 4 - text_width(rule.label), at - 18, plot.right, at});
    labels.avoid_line(plot.left, at, plot.right, at);
  }
  for (const ChartRule& rule : chart.down) {
    const double at = x.pixel(rule.at), half = text_width(rule.label) / 2;
    out += line(at, plot.top, at, plot.bottom, "rule");
    out += text(std::clamp(at, plot.left + half, plot.right - half), plot.top - 8, "middle", "note", rule.label);
    labels.avoid_line(at, plot.top, at, plot.bottom);
  }

  std::string marks;
  for (const ChartSeries& series : chart.series) {
    std::vector<std::pair<double, double>> all;
    for (const ChartPoint& point : series.points) {
      all.emplace_back(x.pixel(point.x), y.pixel(point.y));
      const auto [cx, cy] = all.back();
      labels.avoid_point(cx, cy);
      labels.avoid_line(x.pixel(point.x - point.x_deviation), cy, x.pixel(point.x + point.x_deviation), cy);
      labels.avoid_line(cx, y.pixel(point.y - point.y_deviation), cx, y.pixel(point.y + point.y_deviation));
    }
    const auto strong = frontier_pixels(series, x, y);
    for (std::size_t i = 0; i + 1 < strong.size(); ++i) {
      labels.avoid_line(strong[i].first, strong[i].second, strong[i + 1].first, strong[i + 1].second);
    }
    marks += fmt::format(R"(<g class="{}">)", style_class(series.style)) + polyline(all, "thin") +
             polyline(strong, "strong");
    for (const ChartPoint& point : series.points) {
      marks += whiskers(point, x, y) + marked(point, series.style, x.pixel(point.x), y.pixel(point.y));
    }
    marks += "</g>";
  }
  for (const ChartSeries& series : chart.series) {
    marks += fmt::format(R"(<g class="{}">)", style_class(series.style));
    for (const ChartPoint& point : series.points) {
      marks += labels.place(x.pixel(point.x), y.pixel(point.y), point.label);
    }
    marks += "</g>";
  }
  return out + marks + "</svg>";
}

std::string draw(const StageChart& chart) {
  constexpr double width = 440, height = 300, gap = 15;
  constexpr Box plot{58, 14, width - 46, height - 36};
  std::vector<double> ys;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) ys.push_back(point.y);
  }
  const Axis y = make_axis(ys, plot.bottom, plot.top, 5);
  const double stages = std::max<double>(1, static_cast<double>(chart.stages.size()) - 1);
  const Axis x{.lo = 0, .hi = stages, .from = plot.left + 14, .to = plot.right - 14, .ticks = {}};

  std::string out = opening(width, height, chart.description) + y_axis(y, plot, chart.y_title);
  const double room = (x.to - x.from) / stages;  // for a stage's name
  for (std::size_t s = 0; s < chart.stages.size(); ++s) {
    out += text(x.pixel(static_cast<double>(s)), plot.bottom + 20, "middle", "tick", shortened(chart.stages[s], room));
  }
  std::vector<double> ends;
  for (const ChartSeries& series : chart.series) ends.push_back(y.pixel(series.points.back().y));
  ends = spread_apart(std::move(ends), gap, plot.top + 4, plot.bottom);
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const ChartSeries& series = chart.series[i];
    std::vector<std::pair<double, double>> pixels;
    for (const ChartPoint& point : series.points) pixels.emplace_back(x.pixel(point.x), y.pixel(point.y));
    out += fmt::format(R"(<g class="{}">)", style_class(series.style)) + polyline(pixels, "strong");
    for (std::size_t p = 0; p < pixels.size(); ++p) {
      out += marked(series.points[p], series.style, pixels[p].first, pixels[p].second);
    }
    const auto [end, height_there] = pixels.back();
    if (std::abs(ends[i] - height_there) > 2) out += line(end + 7, height_there, end + 17, ends[i], "leader");
    out += text(end + 20, ends[i] + 4, "start", "label", series.points.back().label) + "</g>";
  }
  return out + "</svg>";
}

}  // namespace inlay::study
