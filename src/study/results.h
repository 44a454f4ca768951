#pragma once

#include <filesystem>
#include <string>

#include "study/metrics.h"

// A study as it is kept on disk and shown: rows of scores, results.json, the table on the terminal.
namespace inlay::study {

// evaluation.json: {"tasks": {NAME: {"loss": …}}, "held": {…}}. Whole or not at all, and exact.
void write_row(const std::filesystem::path& file, const Study& study, const ScoreRow& row);
ScoreRow read_row(const std::filesystem::path& file, const Study& study);

std::string results_json(const Study& study, const Analysis& analysis);
std::string results_table(const Study& study, const Analysis& analysis);

// How the numbers of the report are defined, in a sentence each; for this study's metrics and sets.
struct Definition {
  std::string term, meaning;
};
std::vector<Definition> definitions(const Study& study);

// "0.43"; small ones with a digit more, "0.004", lest they look like nothing.
std::string ratio_number(double ratio);
// The same, or why there is no number: "not reached".
std::string ratio_text(const RatioAt& at);
// "3.072", of accuracies "97.5 %".
std::string value_text(Metric metric, double value);
// "3.072 ± 0.004", without the deviation where there is one seed.
std::string spread_text(const Spread& spread, int digits = 3, bool sign = false);

}  // namespace inlay::study
