#include "train/adapters.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include <nlohmann/json.hpp>

#include "io/hash.h"
#include "io/json.h"
#include "io/paths.h"
#include "train/checkpoint.h"
#include "train/model_folder.h"
#include "weights/dense.h"
#include "weights/masters.h"
#include "weights/quantised.h"

namespace inlay::train {

namespace {

// A tensor that lies in memory already.
class TensorSource final : public weights::PartSource {
 public:
  explicit TensorSource(ConstView tensor) : tensor_(tensor) {}
  ConstView rows(std::int64_t begin, std::int64_t end) override { return tensor_.slice_rows(begin, end); }

 private:
  ConstView tensor_;
};

using Parameters = std::map<std::string, weights::Parameter*>;

Parameters model_parameters(Engine& engine) {
  Parameters result;
  engine.decoder().parameters().for_each([&](weights::Parameter& p) { result[p.name] = &p; });
  return result;
}

// Which of a parameter's adapters a part is, of how many, and where its rows of A begin.
struct Place {
  std::size_t number = 0, parts = 0;
  std::int64_t row = 0;
};
using Places = std::map<std::pair<std::string, std::int64_t>, Place>;  // by the part's first row

Places places_of(const adapter::AdapterTargets& targets) {
  Places result;
  std::map<std::string, Place> next;
  for (const adapter::AdaptedPart& part : targets.parts) {
    Place& place = next[part.parameter];
    result[{part.parameter, part.row}] = place;
    ++place.number;
    place.row += part.rank;
  }
  for (auto& [at, place] : result) place.parts = next.at(at.first).number;
  return result;
}

}  // namespace

std::string BaseFormat::name(DType compute) const {
  return std::string(matrices ? ops::name_of(*matrices) : name_of(compute));
}

std::optional<ops::QuantFormat> BaseFormat::of(const weights::Parameter& p) const {
  if (!p.is_matrix()) return std::nullopt;
  if (mxfp4_experts && p.expert >= 0) return ops::QuantFormat::mxfp4;
  return p.layer < 0 || p.role == weights::Role::router ? std::nullopt : matrices;
}

BaseFormat base_format(const adapter::AdapterOptions& options, const std::filesystem::path& base_model) {
  BaseFormat format;
  if (options.load_in_4bit) format.matrices = ops::QuantFormat::nf4;
  if (options.load_in_8bit) format.matrices = ops::QuantFormat::int8;
  if (options.load_in_fp8) format.matrices = ops::QuantFormat::fp8;
  const nlohmann::json config = io::Json::read(base_model / "config.json").raw();
  if (const auto found = config.find("quantization_config"); found != config.end() && found->is_object()) {
    format.mxfp4_experts = found->value("quant_method", "") == "mxfp4";
  }
  return format;
}

BaseFormat format_of(const adapter::AdapterOrigin& origin, const std::filesystem::path& base_model) {
  BaseFormat format = base_format({}, base_model);
  format.matrices = ops::parse_quant_format(origin.base_format);
  return format;
}

std::string EngineAdapter::identity() const {
  const std::string begun =
      init == adapter::LoraInit::gaussian ? "" : fmt::format(", lora_init {}", adapter::name_of(init));
  return fmt::format("lora_r {}, lora_alpha {}{}{}{}, a base in {}", config.rank, config.alpha,
                     config.rslora ? ", peft_use_rslora" : "", config.dora ? ", peft_use_dora" : "", begun,
                     origin.base_format);
}

std::string EngineAdapter::targets_fingerprint() const {
  io::Hasher hasher;
  const auto add = [&](const std::string& text) { hasher.update(std::as_bytes(std::span(text))); };
  for (const adapter::AdaptedPart& part : targets.parts) {
    add(fmt::format("{} {} {} {} {}\n", part.parameter, part.row, part.module, part.expert, part.rank));
  }
  for (const adapter::SavedPart& part : targets.saved) add(part.tensor + "\n");
  return fmt::format("{:016x}", hasher.digest());
}

std::shared_ptr<const weights::WeightPlan> weight_plan(const EngineAdapter& adapter, const model::ModelConfig& config,
                                                       std::uint64_t seed, const osft::OsftLayout* free) {
  return std::make_shared<weights::WeightPlan>(adapter::weight_plan(
      adapter.targets, config, base_kind(adapter.format), {.probability = adapter.config.dropout, .seed = seed},
      {.free = free, .pissa = adapter.keeps_start()}));
}

adapter::BaseKind base_kind(const BaseFormat& format) {
  return [format](const weights::Parameter& p) -> std::shared_ptr<const weights::WeightKind> {
    if (const auto quantised = format.of(p)) return std::make_shared<weights::QuantisedKind>(*quantised);
    return std::make_shared<weights::DenseKind>();
  };
}

void start_adapter(Engine& engine, const adapter::AdapterTargets& targets, const adapter::AdapterStart& start,
                   const adapter::AdapterFile* saved) {
  engine.start(&start);
  if (saved == nullptr) return;
  const Parameters parameters = model_parameters(engine);
  for (const adapter::SavedPart& part : targets.saved) {
    weights::Parameter& p = *parameters.at(part.parameter);
    TensorSource source(saved->saved(part));
    const weights::Part& at = p.parts.at(static_cast<std::size_t>(part.part));
    if (p.owner != nullptr) {
      p.owner->load(engine.exec(), at, &source);
    } else {
      weights::load_value(engine.exec(), p, at, &source);
    }
  }
  engine.exec().synchronize();
}

namespace {

std::vector<float> read_gradient(backend::Exec& exec, weights::Parameter& p, std::int64_t row, std::int64_t end) {
  p.ensure_grad(exec);
  return model::read_gradient(exec, p, {.row = row, .rows = end - row});
}

using PartNumbers = weights::Weight::AdapterNumbers;

// Of what trains in a matrix's place, in the order of weights/lora.h: A of all parts, then their Bs, then magnitudes.
PartNumbers read_gradients(backend::Exec& exec, weights::Weight& weight, const Place& place, std::int64_t rank) {
  std::vector<weights::Parameter*> own;
  weight.for_each_own([&](weights::Parameter& p) { own.push_back(&p); });
  const auto whole = [&](weights::Parameter& p) { return read_gradient(exec, p, 0, p.rows()); };
  PartNumbers result;
  result.a = read_gradient(exec, *own.front(), place.row, place.row + rank);
  result.b = whole(*own.at(1 + place.number));
  const std::size_t magnitude = 1 + place.parts + place.number;
  if (magnitude < own.size()) result.magnitude = whole(*own[magnitude]);
  return result;
}

}  // namespace

adapter::AdapterSource adapter_source(Engine& engine, const adapter::AdapterTargets& targets, AdapterNumbers which) {
  const auto read = [&engine, which, places = places_of(targets), parameters = model_parameters(engine)](
                        const adapter::AdaptedPart& part, std::vector<float> PartNumbers::*member) {
    weights::Weight& weight = *parameters.at(part.parameter)->owner;
    const Place& place = places.at({part.parameter, part.row});
    return (which == AdapterNumbers::values ? weight.read_adapter(engine.exec(), place.number)
                                            : read_gradients(engine.exec(), weight, place, part.rank)).*
           member;
  };
  return {.a = [=](const adapter::AdaptedPart& part) { return read(part, &PartNumbers::a); },
          .b = [=](const adapter::AdaptedPart& part) { return read(part, &PartNumbers::b); },
          .magnitude = [=](const adapter::AdaptedPart& part) { return read(part, &PartNumbers::magnitude); },
          .saved =
              [&engine, which, parameters = model_parameters(engine)](const adapter::SavedPart& part, DType dtype,
                                                                      const adapter::AdapterSource::Sink& sink) {
                weights::Parameter& p = *parameters.at(part.parameter);
                const weights::Part& at = p.parts.at(static_cast<std::size_t>(part.part));
                if (which == AdapterNumbers::values) {
                  model::read_part(engine.exec(), p, at, dtype, nullptr, PartWriter(p, at, dtype, 0, sink));
                } else {
                  INLAY_ASSERT(dtype == DType::f32, "gradients are in fp32");
                  const std::vector<float> gradient = read_gradient(engine.exec(), p, at.row, at.row + at.rows);
                  sink(0, std::as_bytes(std::span(gradient)));
                }
              }};
}

adapter::AdapterSource staged_adapter(Engine& engine, const adapter::AdapterTargets& targets, ReadSaved saved) {
  using Key = std::pair<std::string, std::int64_t>;
  struct Numbers {
    std::span<const float> a, b, magnitude;
  };
  auto all = std::make_shared<std::map<Key, Numbers>>();
  std::span<float> room = engine.staging()->room_for_adapter();
  const auto put = [&](const std::vector<float>& numbers) {
    INLAY_ASSERT(numbers.size() <= room.size(), "the adapter has no room for {} numbers", numbers.size());
    const std::span<float> mine = room.first(numbers.size());
    std::ranges::copy(numbers, mine.begin());
    room = room.subspan(numbers.size());
    return mine;
  };
  const Parameters parameters = model_parameters(engine);
  if (!room.empty()) {
    const Places places = places_of(targets);
    for (const adapter::AdaptedPart& part : targets.parts) {
      const PartNumbers numbers =
          parameters.at(part.parameter)
              ->owner->read_adapter(engine.exec(), places.at({part.parameter, part.row}).number);
      (*all)[{part.parameter, part.row}] = {put(numbers.a), put(numbers.b), put(numbers.magnitude)};
    }
  }
  const auto read = [all](std::span<const float> Numbers::*member) {
    return [all, member](const adapter::AdaptedPart& part) {
      const std::span<const float> numbers = all->at({part.parameter, part.row}).*member;
      return std::vector<float>(numbers.begin(), numbers.end());
    };
  };
  return {.a = read(&Numbers::a),
          .b = read(&Numbers::b),
          .magnitude = read(&Numbers::magnitude),
          .saved = [parameters, saved = std::move(saved)](const adapter::SavedPart& part, DType dtype,
                                                          const adapter::AdapterSource::Sink& sink) {
            const weights::Parameter& p = *parameters.at(part.parameter);
            const weights::Part& at = p.parts.at(static_cast<std::size_t>(part.part));
            saved(p, at, dtype, PartWriter(p, at, dtype, 0, sink));
          }};
}

namespace {

// [A; A₀] and [B, −B₀] are an adapter of twice the rank, and of a scale that stays.
EngineAdapter with_start(EngineAdapter adapter) {
  const double more = adapter.config.rslora ? std::sqrt(2.0) : 2.0;
  adapter.config.rank *= 2;
  adapter.config.alpha *= more;
  for (adapter::AdaptedPart& part : adapter.targets.parts) {
    part.rank *= 2;
    part.alpha *= more;
  }
  return adapter;
}

// Of many ranks, which all have the adapters, the leader writes them; of what else trains, every rank its rows.
adapter::AdapterSource shared_out(const Communicator& ranks, Engine& engine, adapter::AdapterSource source) {
  const Parameters parameters = model_parameters(engine);
  if (!ranks.leads()) source.a = source.b = source.magnitude = nullptr;
  source.saved = [=, leads = ranks.leads(), saved = std::move(source.saved)](
                     const adapter::SavedPart& part, DType dtype, const adapter::AdapterSource::Sink& sink) {
    const weights::Parameter& p = *parameters.at(part.parameter);
    if (p.cut != nullptr ? p.first_copy : leads) saved(part, dtype, sink);
  };
  return source;
}

void check_finite(adapter::AdapterSource& source) {
  for (auto* values : {&source.a, &source.b, &source.magnitude}) {
    *values = [read = *values](const adapter::AdaptedPart& part) {
      std::vector<float> result = read(part);
      if (!std::all_of(result.begin(), result.end(), [](float value) { return std::isfinite(value); })) {
        throw NotFinite(fmt::format("the adapter of {} holds numbers that are not finite", part.module));
      }
      return result;
    };
  }
}

}  // namespace

SavedFiles save_adapter(Communicator& ranks, Engine& engine, const EngineAdapter& adapter,
                        const std::filesystem::path& folder) {
  return save_adapter(ranks, engine, adapter, folder, adapter_source(engine, adapter.targets));
}

SavedFiles save_adapter(Communicator& ranks, Engine& engine, const EngineAdapter& adapter,
                        const std::filesystem::path& folder, adapter::AdapterSource source) {
  const EngineAdapter saved = adapter.keeps_start() ? with_start(adapter) : adapter;
  if (!ranks.single()) source = shared_out(ranks, engine, std::move(source));
  if (ranks.leads()) check_finite(source);
  std::optional<io::SafetensorsWriter> writer;
  parallel::together(ranks, "the adapter's file", [&] {
    if (ranks.leads()) io::create_folders(folder);
    writer.emplace(adapter::tensors_writer(folder, saved.targets, saved.origin, DType::f32, writers_of(ranks)));
  });
  SavedFiles written = write_together(ranks, *writer, [&] { adapter::write_tensors(*writer, saved.targets, source); });
  by_leader(ranks, adapter::config_file, [&] {
    written.sums[adapter::config_file] = io::write_file_atomic(folder / adapter::config_file, to_json(saved.config));
  });
  return written;
}

}  // namespace inlay::train
