#include "train/batching.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/error.h"
#include "core/text.h"
#include "data/sampler.h"

namespace inlay::train {

namespace {

constexpr std::string_view packing_key = ", packing ";
constexpr const char* accumulation_key = "gradient_accumulation_steps";
// Where a run began on several processes; one process needs no such key, and earlier versions wrote none.
constexpr std::string_view step_key = ", micro-batches per step ";

// A whole number behind a key, and where it stands with its key.
struct Found {
  std::size_t begin = 0, end = 0;
  std::int64_t value = 0;
};
std::optional<Found> find(const std::string& text, std::string_view key) {
  const std::size_t begin = text.find(key);
  if (begin == std::string::npos) return std::nullopt;
  Found found{.begin = begin};
  const char* first = text.data() + begin + key.size();
  const auto [end, error] = std::from_chars(first, text.data() + text.size(), found.value);
  if (error != std::errc() || found.value < 1) return std::nullopt;
  found.end = static_cast<std::size_t>(end - text.data());
  return found;
}

std::optional<Found> accumulation_in(const std::string& batching) {
  return find(batching, fmt::format("{} ", accumulation_key));
}

// All but how many micro-batches make a step.
std::string without_step_size(std::string batching) {
  if (const auto found = find(batching, step_key)) batching.erase(found->begin, found->end - found->begin);
  if (const auto found = accumulation_in(batching)) batching.erase(found->begin, found->end - found->begin);
  return batching;
}

// What the options say, without our version of packing.
std::string keys_of(const std::string& batching) { return batching.substr(0, batching.find(packing_key)); }

// Of two such texts what is in `text` alone.
std::string different(const std::string& text, const std::string& other) {
  const std::vector<std::string> known = split(other, ',');
  std::vector<std::string> rest = split(text, ',');
  std::erase_if(rest, [&](const std::string& part) { return std::ranges::find(known, part) != known.end(); });
  const std::string joined = join(rest, ",");
  return joined.substr(joined.starts_with(' ') ? 1 : 0);
}

bool same_steps(const std::string& saved, const std::string& now) {
  if (step_micro_batches(saved) == step_micro_batches(now)) return true;
  const auto then = accumulation_in(saved), present = accumulation_in(now);
  return then && present && then->value == present->value;
}

}  // namespace

std::string batching_of(const options::TrainOptions& o, int processes) {
  std::string text;
  for (const std::string_view key : {"seed", "sequence_len", "micro_batch_size", accumulation_key, "sample_packing",
                                     "shuffle", "excess_length_strategy"}) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, options::value_text(o, key));
  }
  // Without packing, or in the files' order, there is only one way to do it.
  if (o.sample_packing && o.shuffle) text += fmt::format("{}{}", packing_key, data::packing_version);
  if (processes > 1) text += fmt::format("{}{}", step_key, o.gradient_accumulation_steps * processes);
  return text;
}

std::int64_t step_micro_batches(const std::string& batching) {
  if (const auto found = find(batching, step_key)) return found->value;
  const auto found = accumulation_in(batching);
  return found ? found->value : 1;
}

void check_batching(const std::filesystem::path& checkpoint, const std::string& saved, const std::string& now) {
  const std::string then = without_step_size(saved), present = without_step_size(now);
  const bool steps = same_steps(saved, now);
  if (then == present && steps) return;
  if (keys_of(then) == keys_of(present) && steps) {
    user_error(
        "{}: another version of inlay packed this run's documents into different micro-batches: some would be skipped "
        "and others repeated; finish the run with that version, or start again",
        checkpoint.string());
  }
  user_error(
      "{}: the run's batches were made with {}, but now it is {}: documents would be skipped or repeated; resume with "
      "the run's own keys",
      checkpoint.string(), different(keys_of(saved), keys_of(now)), different(keys_of(now), keys_of(saved)));
}

std::string step_size_note(const std::string& saved, const options::TrainOptions& options, int processes) {
  const std::int64_t size = step_micro_batches(saved), now = options.gradient_accumulation_steps * processes;
  if (size == now) return {};
  if (processes == 1) {
    return fmt::format(
        "{} micro-batches per step, as when the run began; gradient_accumulation_steps alone would give {}", size, now);
  }
  return fmt::format("{} micro-batches per step, as when the run began: {} for each of {} processes would give {}",
                     size, options.gradient_accumulation_steps, processes, now);
}

}  // namespace inlay::train
