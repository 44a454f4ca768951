#include "train/random_tensors.h"

#include <algorithm>

#include "core/philox.h"

namespace inlay::train {

std::vector<float> random_block(std::size_t count, float scale, std::uint64_t seed) {
  // Drawn once: a model has thousands of tensors, and a normal number costs more than its copy.
  static const std::vector<float> drawn = [] {
    const Philox philox{1};
    std::vector<float> normal(random_block_size);
    for (std::size_t i = 0; i < normal.size(); ++i) normal[i] = philox.normal(i);
    return normal;
  }();
  std::vector<float> block(std::min(count, random_block_size));
  const std::size_t offset = static_cast<std::size_t>(seed * 7919) % random_block_size;
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = scale * drawn[(offset + i) % random_block_size];
  return block;
}

void fill_random(backend::Exec& exec, View view, float scale, std::uint64_t seed) {
  if (exec.planning()) return;
  constexpr auto step = static_cast<std::int64_t>(random_block_size);
  const std::vector<float> floats = random_block(static_cast<std::size_t>(view.size()), scale, seed);
  const std::vector<bf16> halves(floats.begin(), floats.end());
  const bool half = view.dtype() == DType::bf16;
  View flat = view.reshape({view.size()});
  for (std::int64_t begin = 0; begin < view.size(); begin += step) {
    const std::int64_t end = std::min(begin + step, view.size());
    exec.upload(flat.slice_rows(begin, end), half ? static_cast<const void*>(halves.data()) : floats.data());
  }
}

}  // namespace inlay::train
