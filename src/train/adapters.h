#pragma once

#include <optional>

#include "adapter/adapter_file.h"
#include "adapter/options.h"
#include "adapter/start.h"
#include "adapter/weight_plan.h"
#include "ops/quantised.h"
#include "train/engine.h"
#include "train/shared_save.h"

// Between adapters, which are files and names, and an engine, which has their tensors.
namespace inlay::train {

// How matrices that do not train are held beneath an adapter. Embeddings, the head and routers stay as they are.
struct BaseFormat {
  std::optional<ops::QuantFormat> matrices;  // absent: in the compute dtype
  // Experts that the checkpoint has in MXFP4 stay so: nothing is lost, and opening them costs little.
  bool mxfp4_experts = false;

  std::string name(DType compute) const;                                          // "nf4", or "bf16"
  std::optional<ops::QuantFormat> of(const weights::Parameter& parameter) const;  // absent: in the compute dtype
};
// As the options say, and the base model's config.json.
BaseFormat base_format(const adapter::AdapterOptions& options, const std::filesystem::path& base_model);
// The format that an adapter was trained over: what it learned fits those numbers, not the file's.
BaseFormat format_of(const adapter::AdapterOrigin& origin, const std::filesystem::path& base_model);
adapter::BaseKind base_kind(const BaseFormat& format);

// The adapter that a run trains, or that an engine was given.
struct EngineAdapter {
  adapter::AdapterConfig config;
  adapter::AdapterTargets targets;
  BaseFormat format;
  adapter::AdapterOrigin origin;
  // How this run begins it: the base beneath PiSSA lacks what the adapter began at, so its tensors mean something else.
  // origin.init, beside it, is what the file says, and may be an earlier run's.
  adapter::LoraInit init = adapter::LoraInit::gaussian;

  // PiSSA: what it began at is saved with it, taken away again, so that it fits the base model as it is.
  bool keeps_start() const { return init == adapter::LoraInit::pissa; }
  // What its tensors mean, beside their shapes: "lora_r 16, lora_alpha 32, lora_init pissa, a base in nf4".
  std::string identity() const;
  // Tells other targets: the parts of a matrix are numbered, so that k's tensors would pass for v's.
  std::string targets_fingerprint() const;
};
// free: the directions of inputs that it keeps to; null: any.
std::shared_ptr<const weights::WeightPlan> weight_plan(const EngineAdapter& adapter, const model::ModelConfig& config,
                                                       std::uint64_t seed = 0, const osft::OsftLayout* free = nullptr);

// After Engine::load(): the adapter's tensors, and the parts of the model that were saved with it.
void start_adapter(Engine& engine, const adapter::AdapterTargets& targets, const adapter::AdapterStart& start,
                   const adapter::AdapterFile* saved = nullptr);
// Where an adapter that is to be written finds the engine's values, or in their place their gradients. The engine must
// outlive it.
enum class AdapterNumbers : std::uint8_t { values, gradients };
adapter::AdapterSource adapter_source(Engine& engine, const adapter::AdapterTargets& targets,
                                      AdapterNumbers which = AdapterNumbers::values);

// The same from a copy that is taken now, into the engine's staging; parts that train whole come from `saved`. It may
// be asked on any thread, while the engine goes on.
using ReadSaved = std::function<void(const weights::Parameter&, const weights::Part&, DType,
                                     const std::function<void(std::span<const std::byte>)>&)>;
adapter::AdapterSource staged_adapter(Engine& engine, const adapter::AdapterTargets& targets, ReadSaved saved);

// Writes the adapter as PEFT has it, all ranks together. NotFinite where a number is not finite.
SavedFiles save_adapter(Communicator& ranks, Engine& engine, const EngineAdapter& adapter,
                        const std::filesystem::path& folder);
SavedFiles save_adapter(Communicator& ranks, Engine& engine, const EngineAdapter& adapter,
                        const std::filesystem::path& folder, adapter::AdapterSource source);

}  // namespace inlay::train
