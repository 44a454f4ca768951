#include "bench/step.h"
#include "core/philox.h"
#include "model/decoding.h"
#include "model/presets.h"
#include "train/session.h"

namespace inlay::bench {

namespace {

struct DecodeArguments : Common {
  std::string config;
  std::int64_t batch = 1, context = 512, tokens = 64;
  float temperature = 0, top_p = 1;
};

// What a step must read: the matrices (of experts those that the tokens can choose), and the keys and values so far.
double bytes_of_step(train::Engine& engine, const DecodeArguments& a) {
  const model::ModelConfig& config = engine.decoder().config();
  double bytes = 0;
  engine.decoder().parameters().for_each([&](const weights::Parameter& p) {
    if (p.role == weights::Role::embedding && !config.tied_embeddings) return;
    const double used = p.expert < 0 ? 1.0
                                     : std::min(1.0, static_cast<double>(a.batch * config.experts.chosen) /
                                                         static_cast<double>(config.experts.count));
    bytes += used * static_cast<double>(p.size()) * static_cast<double>(size_of(engine.options().compute));
  });
  const double position = static_cast<double>(a.context) + static_cast<double>(a.tokens) / 2;
  const auto cached = static_cast<double>(2 * a.batch * config.kv_width() * config.layer_count());
  return bytes + position * cached * static_cast<double>(size_of(engine.options().compute));
}

Report run(const DecodeArguments& a) {
  const model::ModelConfig config = model::shape_or_config(a.config);
  const std::int64_t length = a.context + a.tokens + 4;
  train::EngineOptions options =
      train::engine_options(train::Purpose::generation, train::resolve_machine(a.device, a.dtype), {length, length});
  options.max_tokens = length;
  options.decode_sequences = a.batch;
  const train::Ceilings ceilings =
      train::machine_ceilings(options.device, options.compute, train::Remeasure::no, options.messages);
  const auto engine = train::Engine::create(config, options);
  give_random_weights(*engine);
  backend::Exec& exec = engine->exec();

  std::vector<std::vector<std::int32_t>> prompts(static_cast<std::size_t>(a.batch));
  const Philox philox{11};
  std::uint64_t counter = 0;
  for (std::vector<std::int32_t>& prompt : prompts) {
    for (std::int64_t t = 0; t < a.context; ++t) {
      prompt.push_back(
          static_cast<std::int32_t>(philox.words(counter++)[0] % static_cast<std::uint64_t>(config.vocab)));
    }
  }
  using clock = std::chrono::steady_clock;
  const auto since = [](clock::time_point began) {
    return std::chrono::duration<double, std::milli>(clock::now() - began).count();
  };
  model::Continuation texts(exec, engine->decoder(), a.batch, length - 1, a.context);
  texts.give(exec, prompts);  // warms up
  exec.synchronize();
  for (std::size_t s = 0; s < prompts.size(); ++s) texts.rewind(s, 0);
  const auto prompt_began = clock::now();
  texts.give(exec, prompts);
  exec.synchronize();
  const double prompt_ms = since(prompt_began);

  // The first draws from the prompt's logits, the second runs as it is, and the third is recorded.
  const model::Drawing drawing = {.temperature = a.temperature, .top_p = a.top_p, .seed = 1};
  for (int i = 0; i < 3; ++i) texts.next(exec, drawing);
  std::vector<double> times;
  for (std::int64_t i = 3; i < a.tokens + 3; ++i) {
    const auto began = clock::now();
    texts.next(exec, drawing);
    times.push_back(since(began));
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  const double ms = times[times.size() / 2];
  const double bytes = bytes_of_step(*engine, a), floor_ms = bytes / ceilings.memory * 1e3;
  return {{"ms", ms},
          {"tokens_per_second", static_cast<double>(a.batch) / ms * 1e3},
          {"floor_ms", floor_ms},
          {"share_of_bandwidth", floor_ms / ms},
          {"bytes", bytes},
          {"memory_bytes_per_second", ceilings.memory},
          {"launches", texts.step_launches()},
          {"prompt_ms", prompt_ms},
          {"prompt_tokens_per_second", static_cast<double>(a.batch * a.context) / prompt_ms * 1e3},
          {"peak_extra_bytes", exec.arena().peak()},
          {"parameters", config.parameter_count()},
          {"batch", a.batch},
          {"context", a.context},
          {"tokens", a.tokens},
          {"device", name_of(options.device)},
          {"dtype", name_of(options.compute)}};
}

}  // namespace

Benchmark decode_benchmark() {
  return {"decode", "making text token by token, with random weights of a model's shape",
          [](CLI::App& command) -> std::function<Report()> {
            auto a = std::make_shared<DecodeArguments>();
            command.add_option("--device", a->device, "auto, cpu or cuda");
            command.add_option("--dtype", a->dtype, "fp32 or bf16");
            command
                .add_option("--config,--preset", a->config,
                            "llama-8b, qwen2.5-7b, qwen2.5-0.5b, gemma-3-4b, phi-4-mini, gpt-oss-20b, qwen3-30b-a3b, "
                            "or a config.json")
                ->required();
            command.add_option("--batch", a->batch, "Texts at once")->check(CLI::PositiveNumber);
            command.add_option("--context", a->context, "Tokens that are given")->check(CLI::PositiveNumber);
            command.add_option("--tokens", a->tokens, "Timed tokens, of which the median is reported")
                ->check(CLI::PositiveNumber);
            command.add_option("--temperature", a->temperature)->check(CLI::NonNegativeNumber);
            command.add_option("--top-p", a->top_p)->check(CLI::Range(0.0, 1.0));
            return [a] { return run(*a); };
          }};
}

}  // namespace inlay::bench
