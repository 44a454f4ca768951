#include "train/batching.h"

#include "core/error.h"
#include "data/sampler.h"

namespace inlay::train {

namespace {
constexpr std::string_view packing_key = ", packing ";
}

std::string batching_of(const options::TrainOptions& o) {
  std::string text;
  for (const char* key : {"seed", "sequence_len", "micro_batch_size", "gradient_accumulation_steps", "sample_packing",
                          "shuffle", "excess_length_strategy"}) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, options::value_text(o, key));
  }
  // Without packing, or in the files' order, there is only one way to do it.
  if (o.sample_packing && o.shuffle) text += fmt::format("{}{}", packing_key, data::packing_version);
  return text;
}

void check_batching(const std::filesystem::path& checkpoint, const std::string& saved, const std::string& now) {
  if (saved == now) return;
  const auto keys = [](const std::string& batching) { return batching.substr(0, batching.find(packing_key)); };
  if (keys(saved) == keys(now)) {
    user_error(
        "{}: another version of inlay packed this run's documents into different micro-batches: some would be skipped "
        "and others repeated; finish the run with that version, or start again",
        checkpoint.string());
  }
  user_error(
      "{}: the run's batches were made with {}, but now it is {}: documents would be skipped or repeated; resume with "
      "the run's own keys",
      checkpoint.string(), keys(saved), keys(now));
}

}  // namespace inlay::train
