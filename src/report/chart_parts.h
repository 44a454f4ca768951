#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// What drawings in SVG are made of: no scripts, colours from the page's style sheet (classes s0, s1, … for series), so
// that they follow its light and dark themes.
namespace inlay::report {

inline constexpr std::size_t chart_styles = 7;

namespace chart {

// Round numbers (1, 2 or 5 times a power of ten apart) from lo to hi, about as many as wanted.
struct Ticks {
  std::vector<double> at;
  int decimals = 0;  // to print them with
};
Ticks round_ticks(double lo, double hi, int wanted);

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;

  bool contains(double x, double y) const { return x >= left && x <= right && y >= top && y <= bottom; }
  double overlap(const Box& other) const {
    const double w = std::min(right, other.right) - std::max(left, other.left);
    const double h = std::min(bottom, other.bottom) - std::max(top, other.top);
    return w > 0 && h > 0 ? w * h : 0;
  }
};

// One direction of a chart: values to pixels.
struct Axis {
  double lo = 0, hi = 1, from = 0, to = 1;
  Ticks ticks;

  double pixel(double value) const { return from + (value - lo) / (hi - lo) * (to - from); }
};

// Values to pixels, with some room around the least and the greatest.
Axis make_axis(std::vector<double> values, double from, double to, int wanted);

// Characters, not bytes.
double text_width(std::string_view text, double per_character = 6.6);

std::string text(double x, double y, std::string_view anchor, std::string_view css, std::string_view content);
std::string line(double x1, double y1, double x2, double y2, std::string_view css);
std::string polyline(const std::vector<std::pair<double, double>>& points, std::string_view css);
// The class that gives a series its colour.
std::string style_class(std::size_t style);

// <svg …> of this many pixels, which shrinks where the page is narrower.
std::string opening(double width, double height, std::string_view description);
// Grid lines across the plot, their numbers, and the title along the left edge.
std::string y_axis(const Axis& y, const Box& plot, std::string_view title);

}  // namespace chart
}  // namespace inlay::report
