#include "bench/step.h"

#include "backend/cuda/context.h"
#include "core/philox.h"
#include "model/presets.h"
#include "objective/divergence.h"
#include "objective/preference.h"
#include "train/session.h"
#include "train/step_time.h"

namespace inlay::bench {

namespace {

// Rows of about unit length: near enough to orthonormal, and real numbers, which zeros would not be.
class RandomStart final : public weights::StartTensors {
 public:
  const void* at(const std::string&, DType, const Shape& shape) const override {
    const auto size = static_cast<std::size_t>(shape.size());
    const float scale = shape.rank() == 1 ? 1.0f : 1.0f / std::sqrt(static_cast<float>(shape[1]));
    rows_ = random_block(size, scale, ++seed_);
    const std::size_t period = rows_.size();
    rows_.resize(size);
    for (std::size_t at = period; at < size; at += period) {
      std::copy_n(rows_.data(), std::min(period, size - at), rows_.data() + at);
    }
    return rows_.data();
  }

 private:
  mutable std::vector<float> rows_;
  mutable std::uint64_t seed_ = 1000;
};

// Numbers like a trained matrix's, for weights that are quantised as they are loaded.
class RandomRows final : public weights::PartSource {
 public:
  RandomRows(std::int64_t rows, std::int64_t columns, bool mxfp4, std::uint64_t seed)
      : columns_(columns), block_(random_block(std::size_t{1} << 20, 0.02f, seed)) {
    if (!mxfp4) return;
    shape_ = {rows, columns / 32};
    blocks_.resize(static_cast<std::size_t>(rows * columns / 2));
    for (std::size_t i = 0; i < blocks_.size(); ++i) {  // any bits are numbers
      blocks_[i] = static_cast<std::uint8_t>(0x10000 * block_[i % block_.size()]);
    }
    scales_.assign(static_cast<std::size_t>(rows * columns / 32), 121);  // 2⁻⁶
  }

  ConstView rows(std::int64_t begin, std::int64_t end) override {
    rows_.resize(static_cast<std::size_t>((end - begin) * columns_));
    for (std::size_t at = 0; at < rows_.size(); at += block_.size()) {
      std::copy_n(block_.data(), std::min(block_.size(), rows_.size() - at), rows_.data() + at);
    }
    return ConstView(rows_.data(), DType::f32, {end - begin, columns_});
  }
  Mxfp4 mxfp4() const override {
    if (blocks_.empty()) return {};
    return {ConstView(blocks_.data(), DType::u8, {shape_[0], shape_[1], 16}),
            ConstView(scales_.data(), DType::u8, shape_)};
  }

 private:
  std::int64_t columns_;
  std::vector<float> block_, rows_;
  Shape shape_;
  std::vector<std::uint8_t> blocks_, scales_;
};

}  // namespace

void give_random_weights(train::Engine& engine, bool mxfp4_experts) {
  std::uint64_t seed = 0;
  const auto fill = [&](weights::Parameter& p) {
    if (p.value.absent() && !p.holds_value) {  // not in the compute dtype: it makes its own of what it is given
      for (const weights::Part& part : p.parts) {
        RandomRows rows(part.rows, p.shape[1], mxfp4_experts && p.expert >= 0, ++seed);
        p.owner->load(engine.exec(), part, &rows);
      }
      return;
    }
    backend::Exec& home = p.home(engine.exec());
    fill_random(home, p.holds_value ? p.held_value : p.value, p.shape.rank() == 1 ? 1.0f : 0.02f, ++seed);
    if (!p.low.absent()) home.fill_zero(p.low);
  };
  engine.decoder().parameters().for_each(fill);
  if (engine.other() != nullptr) {
    engine.other()->parameters().for_each(fill);
    engine.other()->start(engine.exec(), nullptr);
  }
  const RandomStart start;
  engine.start(&start);
}

model::ModelConfig MethodStep::config() const {
  model::ModelConfig result = model::shape_or_config(model);
  if (layers > 0) result.layers.resize(static_cast<std::size_t>(layers), result.layers.front());
  return result;
}

void add_method_step(CLI::App& command, MethodStep& step) {
  command.add_option(
      "--model", step.model,
      "llama-8b, qwen2.5-7b, qwen2.5-0.5b, gemma-3-4b, phi-4-mini, gpt-oss-20b, qwen3-30b-a3b, or a config.json");
  command.add_option("--tokens", step.tokens, "Tokens per step")->check(CLI::PositiveNumber);
  command.add_option("--documents", step.documents, "Documents that the tokens are split into")
      ->check(CLI::PositiveNumber);
  command.add_option("--layers", step.layers, "Number of layers, instead of the model's own")
      ->check(CLI::PositiveNumber);
  command.add_option("--policy", step.policy, "Activation policy, or auto");
  command.add_flag("--deterministic", step.deterministic, "Sum in a fixed order in attention's backward pass");
}

void add_objective(CLI::App& command, Learned& learned) {
  command
      .add_option("--objective", learned.objective,
                  "next, dft, eaft, kl (to a copy of the model), dpo or orpo (documents are the halves of pairs), "
                  "kd-forward, kd-reverse or kd-jsd")
      ->check(CLI::IsMember({"next", "dft", "eaft", "kl", "dpo", "orpo", "kd-forward", "kd-reverse", "kd-jsd"}));
  command.add_option("--teacher", learned.teacher, "kd-*: its shape; by default the model's own");
}

void set_objective(train::EngineOptions& options, const Learned& a, const std::string& model, std::int64_t documents) {
  using Kind = ops::DivergenceKind;
  const std::map<std::string, Kind> divergences = {{"kl", Kind::forward},
                                                   {"kd-forward", Kind::forward},
                                                   {"kd-reverse", Kind::reverse},
                                                   {"kd-jsd", Kind::jensen_shannon}};
  if (a.objective == "dft") options.loss.rule.rule = ops::TokenRule::dft;
  if (a.objective == "eaft") options.loss.rule.rule = ops::TokenRule::eaft;
  if (a.objective == "dpo" || a.objective == "orpo") {
    const auto kind = a.objective == "dpo" ? ops::PreferenceKind::sigmoid : ops::PreferenceKind::orpo;
    options.objective = std::make_shared<objective::PreferenceKind>(
        ops::PreferenceSpec{.kind = kind, .likelihood = a.objective == "orpo" ? 1.0 : 0.0});
    options.roles = {SequenceRole::chosen, SequenceRole::rejected};
    options.reference = a.objective == "dpo";
    if (documents % 2 != 0) user_error("--documents: pairs are two documents each, got {}", documents);
  }
  if (!a.teacher.empty() && !a.objective.starts_with("kd-")) {
    user_error("--teacher is for --objective kd-forward, kd-reverse or kd-jsd; leave it out");
  }
  const auto divergence = divergences.find(a.objective);
  if (divergence == divergences.end()) return;
  const float labels = a.objective == "kl" ? 1.0f : 0.0f;
  options.objective = std::make_shared<objective::DivergenceKind>(
      ops::DivergenceSpec{.kind = divergence->second, .beta = 0.5f, .ce_weight = labels}, "divergence");
  options.other.wanted = true;
  if (a.objective != "kl") options.other.config = model::shape_or_config(a.teacher.empty() ? model : a.teacher);
}

Report time_step(const model::ModelConfig& config, const train::EngineOptions& options, const StepArguments& shape) {
  const train::MemoryPlan plan = train::Engine::plan(config, options);
  train::Ceilings ceilings;
  ceilings.matmul = measured_matmul_rate(options.device, options.compute);
  ceilings.fp8 = options.fp8 && options.device == Device::cuda ? measured_matmul_rate(options.device, DType::e4m3)
                                                               : ceilings.matmul;
  const double rate = ceilings.rate_of(plan.cost.model());

  const auto engine = train::Engine::create(config, options);
  give_random_weights(*engine, shape.mxfp4_experts);
  std::vector<Document> documents(static_cast<std::size_t>(shape.documents));
  const Philox philox{11};
  std::uint64_t counter = 0;
  if (shape.ragged && shape.documents % 2 != 0)
    user_error("--ragged needs an even number of --documents, got {}", shape.documents);
  for (Document& d : documents) {
    const bool shorter = (&d - documents.data()) % 2 != 0;
    const std::int64_t half = shape.ragged ? shape.length / 2 : 0, length = shape.length + (shorter ? -half : half);
    for (std::int64_t t = 0; t < length; ++t) {
      d.input_ids.push_back(
          static_cast<std::int32_t>(philox.words(counter++)[0] % static_cast<std::uint64_t>(config.vocab)));
    }
    d.labels = d.input_ids;
    if (options.roles.empty()) continue;
    const auto number = static_cast<std::size_t>(&d - documents.data());
    d.labels.front() = sequence_mark(options.roles[number % options.roles.size()]);
    if (options.reference) d.reference = {-static_cast<float>(length)};
  }
  const std::vector<PackedBatch> batches = {pack(documents)};
  // As if all others had batches like this one's.
  const auto others = static_cast<std::int64_t>(options.mesh.all->size());
  const train::StepShare share{.passes = 1,
                               .tokens = others * batches[0].token_count(),
                               .valid = others * batches[0].valid_count(),
                               .weight = static_cast<double>(others) * batches[0].valid_weight()};
  std::int64_t step = 0;
  // What steps of many processes leave to exchange, the next one's kernels hide: only several in a row show it.
  const int in_a_row = options.mesh.many() ? 4 : 1;
  const auto one_step = [&] {
    if (options.optimizer_state) {
      engine->train_step(batches, ++step, 1e-6, share);
    } else {
      engine->gradients(batches, 0, share);
    }
  };
  const double ms = median_ms(engine->exec(), shape.iterations,
                              [&] {
                                for (int i = 0; i < in_a_row; ++i) one_step();
                              }) /
                    in_a_row;
  const auto tokens = static_cast<double>(options.max_tokens);
  const double flops = train::model_flops(plan, batches);
  return {{"ms", ms},
          {"tokens_per_second", tokens / ms * 1e3},
          {"floor_ms", flops / rate * 1e3},
          {"model_tflops", flops / ms * 1e-9},
          {"peak_extra_bytes", plan.device_peak},
          {"arena_peak_bytes", engine->exec().arena().peak()},
          {"host_plan_bytes", plan.host_peak},
          {"host_peak_bytes", engine->exec().host().arena().peak()},
          {"disk_bytes", plan.disk_bytes},
          {"device_used_bytes", options.device == Device::cuda ? backend::cuda::device_memory_used() : 0},
          {"parameters", config.parameter_count()},
          {"documents", shape.documents},
          {"length", shape.length},
          {"optimizer", options.optimizer_state ? "adamw" : "none"},
          {"activation_policy", options.policy.str()},
          {"mlp_tile", options.mlp_tile},
          {"host_layers", options.host_layers},
          {"deterministic", options.deterministic},
          {"loss", engine->decoder().read_loss(engine->exec()).loss},
          {"device", name_of(options.device)},
          {"dtype", name_of(options.compute)}};
}

}  // namespace inlay::bench
