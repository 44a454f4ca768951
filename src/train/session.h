#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "osft/find_bases.h"
#include "train/adapters.h"
#include "train/memory.h"
#include "train/run_data.h"

// From options to what they mean on this machine: device, dtype, the engine and its memory.
namespace inlay::train {

struct Machine {
  Device device = Device::cpu;
  DType compute = DType::f32;
};
// Absent, or auto in the texts: a GPU if there is one, and bf16 where the device multiplies it natively.
Machine resolve_machine(std::optional<Device> device, std::optional<DType> compute);
Machine resolve_machine(const std::string& device, const std::string& dtype);

// What the layers multiply in, by matmul_dtype and the keys of fp8; a UserError where the machine cannot. Absent: in
// the compute dtype.
std::optional<model::Fp8Options> fp8_of(const options::TrainOptions& options, const Machine& machine);

// "bf16", or "bf16 with products in fp8 (block)".
std::string arithmetic_text(const EngineOptions& engine);

// What an engine is made for: which passes it must have memory for.
enum class Purpose : std::uint8_t { training, gradients, gradients_and_logits, evaluation, choices, generation };
// The one place where engines' options begin. Everything that belongs to the model is in its configuration, so that no
// command can forget it.
EngineOptions engine_options(Purpose purpose, const Machine& machine, const BatchBounds& bounds);
// The same for a run: everything but the policy, which needs a plan, and what OSFT finds, which needs the model.
EngineOptions engine_options(const options::TrainOptions& options, const BatchBounds& bounds);

// An engine with the weights of a model folder in it, and an adapter's where a folder of one is given. Ctrl-C while
// they are read throws Interrupted.
std::unique_ptr<Engine> load_engine(const std::filesystem::path& folder, const model::ModelConfig& config,
                                    const EngineOptions& options, Console& console,
                                    const std::filesystem::path& adapter = {});
void load_weights(Engine& engine, const io::Checkpoint& weights, Console& console);

// How many tokens and calls a step's gradients will see.
osft::StepShape step_shape(const options::TrainOptions& options, const BatchBounds& bounds);
// The base model's configuration, with what the options say otherwise.
model::ModelConfig config_of(const options::TrainOptions& options);
// The parameters that options.freeze names.
std::set<std::string> frozen_of(const options::TrainOptions& options, const model::ModelConfig& config);
// The adapter that the options ask for; null without.
std::shared_ptr<const EngineAdapter> adapter_of(const options::TrainOptions& options, const model::ModelConfig& config);
// "adapter: rank 16 on 196 matrices over nf4"
std::string adapter_text(const EngineAdapter& adapter);
// "4,884,480 trainable parameters (3.63 % of the model)"
std::string trainable_text(const MemoryPlan& plan, const model::ModelConfig& config);
// What every matrix is to the run: frozen, in a subspace, with an adapter. Under OSFT by the options alone, before any
// direction was found.
void plan_weights(const options::TrainOptions& options, const model::ModelConfig& config, const BatchBounds& bounds,
                  EngineOptions& engine);
// What the search for directions, OSFT's or an adapter's, must know of the options, which must outlive it.
osft::SearchInputs search_inputs(const options::TrainOptions& options, const model::ModelConfig& config, Device device,
                                 Console& console);
// The memory that the options allow, what they decide about its use, and the rest of the decisions.
MemoryBudget budget_of(const options::TrainOptions& options, Device device);
MemoryDemands demands_of(const options::TrainOptions& options);
MemoryChoice resolve_memory(const options::TrainOptions& options, const model::ModelConfig& config,
                            EngineOptions& engine);

}  // namespace inlay::train
