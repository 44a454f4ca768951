#include "train/generate.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "core/interrupt.h"

namespace inlay::train {

std::vector<std::vector<std::int32_t>> generate(Engine& engine, std::span<const std::vector<std::int32_t>> prompts,
                                                const GenerateOptions& options) {
  return model::continue_texts(engine.exec(), engine.decoder(), prompts,
                               {.count = options.count,
                                .stops = options.stops,
                                .keep_stop = options.keep_stop,
                                .drawing = options.drawing,
                                .ranks = options.ranks,
                                .made = options.made,
                                .ended = options.ended});
}

std::vector<std::int32_t> generate(Engine& engine, const std::vector<std::int32_t>& prompt,
                                   const GenerateOptions& options) {
  return generate(engine, std::span(&prompt, 1), options).front();
}

std::int64_t answers_at_once(const Machine& machine, const model::ModelConfig& config, std::size_t count,
                             std::int64_t longest) {
  // A step costs the GPU hardly more for many texts than for one; a CPU is busy with a few.
  const bool gpu = machine.device == Device::cuda;
  const std::int64_t most = gpu ? 256 : 16, bytes = std::int64_t{gpu ? 8 : 1} << 30;
  const std::int64_t token = 2 * config.layer_count() * config.kv_heads * config.head_dim *
                             static_cast<std::int64_t>(size_of(machine.compute));
  const std::int64_t fitting = std::clamp<std::int64_t>(bytes / (token * longest), 1, most);
  return std::min(static_cast<std::int64_t>(count), fitting);
}

void plan_answers(EngineOptions& engine, const model::ModelConfig& config, std::size_t count, std::int64_t longest) {
  engine.decode_sequences = answers_at_once({engine.device, engine.compute}, config, count, longest);
  engine.decode_length = longest;
}

namespace {

using Texts = std::vector<std::vector<std::int32_t>>;

// Prompts in the order in which they are answered, and those of them that this process answers.
struct Share {
  std::vector<std::size_t> order;
  std::size_t begin = 0, end = 0;
};

// Prompts of about one length together: a short one would wait in the memory of a long one.
Share share_of(const Texts& prompts, const parallel::Communicator& ranks) {
  Share share;
  share.order.resize(prompts.size());
  std::iota(share.order.begin(), share.order.end(), std::size_t{0});
  std::ranges::stable_sort(share.order, {}, [&](std::size_t i) { return prompts[i].size(); });
  const auto rank = static_cast<std::size_t>(ranks.rank()), size = static_cast<std::size_t>(ranks.size());
  share.begin = rank * prompts.size() / size;
  share.end = (rank + 1) * prompts.size() / size;
  return share;
}

void answer_share(Engine& engine, const Texts& prompts, const Share& share, const GenerateOptions& options,
                  parallel::Communicator* together, Console& console, Texts& answers) {
  const auto at_once = static_cast<std::size_t>(engine.options().decode_sequences);
  for (std::size_t first = share.begin; first < share.end; first += at_once) {
    const std::size_t end = std::min(first + at_once, share.end);
    Texts some;
    for (std::size_t i = first; i < end; ++i) some.push_back(prompts[share.order[i]]);
    model::WritingOptions writing{.count = options.count,
                                  .stops = options.stops,
                                  .keep_stop = options.keep_stop,
                                  .drawing = options.drawing,
                                  .ranks = together};
    writing.drawing.first_sequence += static_cast<std::int64_t>(first);
    writing.progress = [&](std::int64_t done, std::int64_t total) {
      const bool asked = interrupt_requested();
      stop_where_asked("answering", together != nullptr ? together->any(asked, "whether to stop") : asked);
      const auto tokens = [&](std::size_t texts, std::int64_t each) { return static_cast<std::int64_t>(texts) * each; };
      console.progress_count("answering: tokens", tokens(first - share.begin, total) + tokens(end - first, done),
                             tokens(share.end - share.begin, total));
    };
    Texts made = model::continue_texts(engine.exec(), engine.decoder(), some, writing);
    for (std::size_t i = first; i < end; ++i) answers[share.order[i]] = std::move(made[i - first]);
  }
}

// Each text behind its length.
std::string packed(const Texts& texts, const Share& share) {
  std::vector<std::int32_t> numbers;
  for (std::size_t i = share.begin; i < share.end; ++i) {
    const std::vector<std::int32_t>& text = texts[share.order[i]];
    numbers.push_back(static_cast<std::int32_t>(text.size()));
    numbers.insert(numbers.end(), text.begin(), text.end());
  }
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(std::int32_t)};
}

// What all processes have answered, one share behind the other.
void unpack(std::string_view bytes, const std::vector<std::size_t>& order, Texts& texts) {
  std::vector<std::int32_t> numbers(bytes.size() / sizeof(std::int32_t));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  auto at = numbers.begin();
  for (const std::size_t i : order) {
    INLAY_ASSERT(at < numbers.end() && *at < numbers.end() - at, "answers of other processes were cut off");
    const std::int32_t length = *at++;
    texts[i].assign(at, at + length);
    at += length;
  }
}

}  // namespace

std::vector<std::vector<std::int32_t>> answer_all(Engine& engine, const std::vector<std::vector<std::int32_t>>& prompts,
                                                  const GenerateOptions& options, Console& console) {
  const parallel::Mesh& mesh = engine.options().mesh;
  Texts answers(prompts.size());
  const bool divided = mesh.many() && !mesh.cuts(parallel::Zero::weights);
  if (!divided) {
    parallel::Communicator* const together = mesh.many() ? mesh.all.get() : nullptr;
    answer_share(engine, prompts, share_of(prompts, *parallel::single_process()), options, together, console, answers);
    return answers;
  }
  const Share share = share_of(prompts, *mesh.all);
  std::optional<Interrupted> interrupted;  // the others are told before it is thrown: they wait for these answers
  try {
    answer_share(engine, prompts, share, options, nullptr, console, answers);
  } catch (const Interrupted& error) {
    interrupted = error;
  }
  if (mesh.all->any(interrupted.has_value(), "whether to stop")) {
    if (interrupted) throw Interrupted(*interrupted);
    stop_where_asked("answering", true);
  }
  std::string all;
  for (const std::string& theirs : mesh.all->exchange(packed(answers, share), "answers")) all += theirs;
  unpack(all, share.order, answers);
  return answers;
}

}  // namespace inlay::train
