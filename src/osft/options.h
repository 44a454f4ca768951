#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace inlay::osft {

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
  bool enabled = false;  // the key was given

  std::string basis = "activations";  // activations, weights
  double unfreeze_rank_ratio = 0;     // required, above 0
  std::vector<std::string> targets = {"auto"};
  std::vector<std::pair<std::string, double>> ratios;  // pattern → ratio; the last that matches counts
  std::string route = "auto";                          // auto, direct, dense, factored
  std::string ranks = "uniform";                       // uniform, adaptive
  double adaptive_floor = 0.1;                         // the least share that adaptive ranks freeze
  CalibrationOptions calibration;
  std::vector<std::string> freeze = {"auto"};
  std::string tokens = "unseen";    // unseen, all
  std::string basis_on = "device";  // device, host
  std::string cache = "auto";       // auto, off, or a folder
};

}  // namespace inlay::osft
