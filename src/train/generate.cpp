#include "train/generate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "model/decoding.h"
#include "ops/sample.h"

namespace inlay::train {

void keep_nucleus(std::span<float> logits, float temperature, float top_p) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  const auto top = static_cast<double>(logits[order.front()]);
  const auto likelihood = [&](std::size_t token) { return std::exp((logits[token] - top) / temperature); };
  double total = 0, passed = 0;
  for (const std::size_t token : order) total += likelihood(token);
  for (const std::size_t token : order) {
    const double mine = likelihood(token);
    if (passed >= top_p * total) logits[token] = -std::numeric_limits<float>::infinity();
    passed += mine;
  }
}

std::vector<std::int32_t> generate(Engine& engine, const std::vector<std::int32_t>& prompt,
                                   const GenerateOptions& options) {
  INLAY_ASSERT(!prompt.empty() && options.count >= 1, "generate: {} tokens after a prompt of {}", options.count,
               prompt.size());
  Exec& exec = engine.exec();
  model::Decoder& decoder = engine.decoder();
  Arena& arena = exec.arena();
  const auto given = static_cast<std::int64_t>(prompt.size());
  // The last token is made from those before it, and needs no place.
  model::Continuation continuation(exec, decoder, 1, given + options.count - 1, given);
  const View id = arena.keep(MemoryClass::batch, "token", DType::i32, {1});
  const backend::ScratchScope scope(arena);
  const View logits = arena.scratch(MemoryClass::logits, "logits", DType::f32, {1, decoder.config().vocab});
  std::vector<float> on_host(static_cast<std::size_t>(decoder.config().vocab));

  std::vector<std::int32_t> made;
  for (std::int64_t position = 0; position < given + options.count - 1; ++position) {
    if (position < given) exec.upload(id, &prompt[static_cast<std::size_t>(position)]);
    const bool last = position + 1 >= given;  // of the prompt, or made since
    continuation.append(exec, last ? logits : View{}, id, position);
    if (!last) continue;
    if (options.top_p < 1.0f) {
      exec.download(on_host.data(), logits);
      keep_nucleus(on_host, options.temperature, options.top_p);
      exec.upload(logits, on_host.data());
    }
    ops::sample(exec, id, logits,
                {.temperature = options.temperature,
                 .seed = options.seed,
                 .first_sequence = options.sequence,
                 .position = position});
    std::int32_t next = 0;
    exec.download(&next, id);
    if (next == options.stop) break;
    made.push_back(next);
    if (options.made) options.made(next);
  }
  return made;
}

}  // namespace inlay::train
