#include "train/take_back.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/interrupt.h"
#include "model/families/family.h"
#include "model/part_reader.h"
#include "train/derived_model.h"

namespace inlay::train {

namespace {

std::vector<float> averaged(std::span<const float> base, std::span<const float> trained, float share) {
  std::vector<float> result(base.size());
  for (std::size_t i = 0; i < base.size(); ++i) result[i] = base[i] + share * (trained[i] - base[i]);
  return result;
}

std::vector<float> pruned(std::span<const float> base, std::span<const float> trained, double share) {
  std::vector<float> result(base.begin(), base.end());
  // Where the base model has 0, nothing stays, however much room there is.
  const auto scored = base.size() - static_cast<std::size_t>(std::ranges::count(base, 0.0f));
  auto room = std::min(static_cast<std::size_t>(share * static_cast<double>(base.size())), scored);
  if (room == 0) return result;
  double sum = 0;
  for (const float value : base) sum += std::abs(double{value});
  const auto mean = static_cast<float>(sum / static_cast<double>(base.size()));
  std::vector<float> scores(base.size());
  for (std::size_t i = 0; i < base.size(); ++i) {
    const float change = std::abs(trained[i] - base[i]), size = std::abs(base[i]);
    scores[i] = size > 0 ? change - mean * (change / size) : -std::numeric_limits<float>::infinity();
  }
  std::vector<float> order = scores;
  const auto last = order.begin() + static_cast<std::ptrdiff_t>(room - 1);
  std::ranges::nth_element(order, last, std::ranges::greater{});
  // What is above the last score that stays takes its place first; of the others as many as there is room for.
  room -= static_cast<std::size_t>(std::count_if(order.begin(), last, [&](float s) { return s > *last; }));
  for (std::size_t i = 0; i < base.size(); ++i) {
    const bool stays = scores[i] > *last || (scores[i] == *last && room > 0);
    if (!stays) continue;
    room -= scores[i] == *last ? 1 : 0;
    result[i] = trained[i];
  }
  return result;
}

}  // namespace

std::vector<float> taken_back(std::span<const float> base, std::span<const float> trained, TakeBack how, double share) {
  INLAY_ASSERT(base.size() == trained.size(), "{} numbers of the base model and {} of the trained one", base.size(),
               trained.size());
  return how == TakeBack::average ? averaged(base, trained, static_cast<float>(share)) : pruned(base, trained, share);
}

void take_back(const TakeBackOptions& options, Console& console) {
  const model::ModelConfig config = model::load_config(options.trained);
  model::ModelParameters parameters(config);
  const io::Checkpoint base(options.base);
  std::uint64_t done = 0;
  const std::uint64_t total = base.total_bytes();
  write_derived_folder(options.output, options.trained, [&](const std::filesystem::path& folder) {
    return write_model(
        *parallel::single_process(), {.base = options.trained, .folder = folder, .dtype = {}}, config, parameters,
        [](const weights::Parameter&) { return true; },
        [&](const weights::Parameter& p, const weights::Part& part, DType dtype, const io::Checkpoint& trained,
            const PieceSink& sink) {
          stop_where_asked("taking back what was learned");
          const std::vector<float> numbers =
              taken_back(part_numbers(base, p, part), part_numbers(trained, p, part), options.how, options.share);
          const Shape shape = part_shape(p, part);
          const std::vector<std::byte> bytes = as_tensor(part, in_dtype(numbers, dtype, shape), dtype, shape);
          sink(bytes);
          done += model::PartReader(base, p, part).file_bytes();
          console.progress("taking back what was learned", done, total);
        });
  });
}

}  // namespace inlay::train
