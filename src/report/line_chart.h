#pragma once

#include <string>
#include <utility>
#include <vector>

#include "report/chart_parts.h"

namespace inlay::report {

struct LineSeries {
  std::size_t style = 0;  // colour
  std::string name;       // for the legend and the tooltip
  std::vector<std::pair<double, double>> points;
  bool dots = false;   // few points, each marked and told when the pointer rests on it
  bool faint = false;  // behind the others
};

// Values over the steps of a run, be they ten or millions: what does not fit into the picture's columns is drawn by the
// least and the greatest of each, so that no spike is lost. Points that are not finite are left out.
struct LineChart {
  std::string y_title, description;
  bool from_zero = false;  // 0 belongs to the picture
  std::vector<LineSeries> series;
};
std::string draw(const LineChart& chart);

// Means of about `groups` runs of neighbouring points: the course of a noisy value.
std::vector<std::pair<double, double>> smoothed(const std::vector<std::pair<double, double>>& points,
                                                std::size_t groups);

}  // namespace inlay::report
