#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weights/basis.h"
#include "weights/route.h"

namespace inlay::osft {

// How the frozen directions are found.
enum class BasisKind : std::uint8_t { activations, weights };
inline std::string_view name_of(BasisKind kind) { return kind == BasisKind::weights ? "weights" : "activations"; }
// Whether all layers freeze the same share, or each by its importance.
enum class Ranks : std::uint8_t { uniform, adaptive };
// Whose embeddings train, where embeddings do.
enum class TrainedTokens : std::uint8_t { unseen, all };

// Text on which the base model's activations are observed.
struct CalibrationOptions {
  // sample: the base model writes it; earlier: the training data of a study's tasks before this one, which `inlay
  // continual` puts in its place; else JSONL files.
  std::vector<std::string> data = {"sample"};
  std::int64_t samples = 192;  // sequences of each of these
  std::int64_t length = 256;   // tokens of each
  double temperature = 1.0;    // of sampling
};

// The key `osft`: which directions of which weights train. See docs/osft.md.
struct OsftOptions {
  bool enabled = false;  // the weights train so; an adapter may use some of the keys without

  BasisKind basis = BasisKind::activations;
  double unfreeze_rank_ratio = 0;  // required, above 0
  std::vector<std::string> targets = {"auto"};
  std::vector<std::pair<std::string, double>> ratios;  // pattern → ratio; the last that matches counts
  std::optional<weights::Route> route;                 // absent: the cheapest
  Ranks ranks = Ranks::uniform;
  double adaptive_floor = 0.1;  // the least share that adaptive ranks freeze
  CalibrationOptions calibration;
  std::vector<std::string> freeze = {"auto"};
  TrainedTokens tokens = TrainedTokens::unseen;
  weights::BasisPlace basis_on = weights::BasisPlace::device;
  std::string cache = "auto";  // auto, off, or a folder
};

}  // namespace inlay::osft
