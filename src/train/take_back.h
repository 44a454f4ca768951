#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "core/console.h"

namespace inlay::train {

// What can be done about forgetting when the training is over. With W₀ a tensor of the base model and ΔW what it has
// learned, a share s of which stays:
//   average  W₀ + s·ΔW: the weights of both models are averaged (WiSE-FT, Wortsman et al. 2022).
//   prune    of each tensor the s·n entries of ΔW (rounded down) with the largest
//            |ΔW| − mean|W₀|·|ΔW| / |W₀|
//            stay, and the others are as they were (FAPM, Huang et al. 2025). Where W₀ is 0 the score is −∞ and nothing
//            stays.
enum class TakeBack : std::uint8_t { average, prune };

// The numbers of one tensor; sums are in fp32, the mean's in fp64. Of entries with the same score the first stay.
std::vector<float> taken_back(std::span<const float> base, std::span<const float> trained, TakeBack how, double share);

struct TakeBackOptions {
  std::filesystem::path base, trained, output;
  TakeBack how = TakeBack::average;
  double share = 1;
};
// The same for a whole model, as a model of its own in the dtypes of the trained one. A tensor at a time is in memory.
// The folder must not exist, and appears whole or not at all; an interrupt is Interrupted.
void take_back(const TakeBackOptions& options, Console& console);

}  // namespace inlay::train
