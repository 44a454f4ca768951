#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "options/train_options.h"

namespace inlay::train {

struct CardFacts {
  const options::TrainOptions& options;
  const nlohmann::ordered_json& summary;  // as summary.json has it
  std::filesystem::path metrics;          // metrics.jsonl, for how it began
  std::string data_fingerprint, base_fingerprint;
};

inline constexpr const char* card_file = "README.md";

// README.md of a result, as Hugging Face shows it: what it was made from, with what, and how it went.
std::string model_card(const CardFacts& facts);
// Whether a file is one of these, and no person's own words.
bool is_model_card(const std::filesystem::path& file);

}  // namespace inlay::train
