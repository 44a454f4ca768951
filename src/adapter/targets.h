#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "adapter/config.h"
#include "model/parameters.h"

namespace inlay::adapter {

// A matrix that gets a low-rank change: scale · B A, with A [rank, in] and B [out, rank]. It is one part of a
// parameter, or the whole of one: stacked experts have one pair for gate and up.
struct AdaptedPart {
  static constexpr std::int64_t whole = -1;

  std::string parameter;  // its name in the model: "layers.3.attention.qkv"
  std::int64_t part = 0;  // which of its parts, or whole
  std::string module;     // PEFT's name of what holds the tensors: "model.layers.3.self_attn.q_proj"
  std::int64_t row = 0;   // the first of its rows in the parameter
  std::int64_t out = 0, in = 0;
  std::int64_t rank = 0;
  double alpha = 0, scale = 0;
  // Where one pair of tensors has those of all experts of a layer: which of them this is, and of how many.
  std::int64_t expert = 0, stacked = 0;
  bool is_head = false;
};

// A part of the base model that trains whole, and is saved with the adapter.
struct SavedPart {
  std::string parameter;
  std::int64_t part = 0;
  std::string tensor;  // PEFT's name, without what stands before all: "lm_head.weight"
  Shape shape;
  bool is_tied_head = false;  // an embedding that is the head as well: it is written under both names
};

struct AdapterTargets {
  std::vector<AdaptedPart> parts;  // in the model's order; those of a module side by side
  std::vector<SavedPart> saved;
  bool dora = false;  // every adapted part also has a magnitude, [out]
};

// Where names came from, for messages, and what becomes of those that name nothing in this model: in a file of PEFT's
// they are as good as absent, in a configuration a mistake.
struct NameSource {
  std::string file;
  bool options = false;  // keys are those of a run's configuration: lora_target_modules
};

// Which of a model's matrices a configuration means, by PEFT's rules. Everything wrong is one UserError.
AdapterTargets find_targets(const AdapterConfig& config, const model::ModelConfig& model, const NameSource& source);

// Whether it can go on training: a UserError where it cannot.
void check_trains(const AdapterTargets& targets, const std::string& source);

// All linear layers but the head as a list of target_modules: the shortest names that mean no more.
std::vector<std::string> linear_names(const model::ModelConfig& model);

}  // namespace inlay::adapter
