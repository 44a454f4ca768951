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
        "{}: another version of inlay packed this run's documents into other micro-batches: going on, some would be "
        "missed and others met again; finish the run with that version, or start it again",
        checkpoint.string());
  }
  user_error(
      "{}: the run's batches were made by {}, but now it is {}: documents would be missed or met again; resume with "
      "the keys of the run",
      checkpoint.string(), keys(saved), keys(now));
}

}  // namespace inlay::train
