#pragma once

#include <string>
#include <vector>

#include "report/chart_parts.h"

// The drawings of a study's report.
namespace inlay::study {

struct ChartPoint {
  double x = 0, y = 0;
  double x_deviation = 0, y_deviation = 0;  // drawn as whiskers where they are not 0
  std::string label, title;                 // beside the point; shown when the pointer rests on it
  bool strong = true;                       // faint otherwise, and off the thick line
};

struct ChartSeries {
  std::size_t style = 0;  // colour and marker
  std::vector<ChartPoint> points;
};

// A line across the chart at a value that means something.
struct ChartRule {
  double at = 0;
  std::string label;
};

// Points of two measures with a thick line through the strong ones of each series (by rising x) and a thin one through
// all (in their order).
struct FrontierChart {
  std::string x_title, y_title, description;
  std::vector<ChartSeries> series;
  std::vector<ChartRule> across, down;  // at y values, at x values
};
std::string draw(const FrontierChart& chart);

// Values over a few named stages, with the last value beside each line's end.
struct StageChart {
  std::string y_title, description;
  std::vector<std::string> stages;
  std::vector<ChartSeries> series;  // x is the stage's index
};
std::string draw(const StageChart& chart);

// The marker of a style alone, for legends.
std::string draw_marker(std::size_t style);

}  // namespace inlay::study
