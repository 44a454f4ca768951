#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "core/text.h"
#include "io/checkpoint.h"
#include "io/paths.h"
#include "model/families/family.h"
#include "model/families/text_part.h"
#include "model/parameters.h"
#include "model/weights_io.h"

// For whoever has a model of a family that is not here yet: how far away is it?
namespace inlay::model {

namespace {

// What the families read, and what says nothing about a model's arithmetic.
constexpr std::array<std::string_view, 82> ordinary_keys = {"_name_or_path",
                                                            "_sliding_window_pattern",
                                                            "architectures",
                                                            "attention_bias",
                                                            "attention_dropout",
                                                            "attention_multiplier",
                                                            "attn_implementation",
                                                            "attn_logit_softcapping",
                                                            "auto_map",
                                                            "bos_token_id",
                                                            "cache_implementation",
                                                            "decoder_sparse_step",
                                                            "dtype",
                                                            "dual_chunk_attention_config",
                                                            "embd_pdrop",
                                                            "embedding_multiplier",
                                                            "eos_token_id",
                                                            "experts_per_token",
                                                            "final_logit_softcapping",
                                                            "head_dim",
                                                            "hidden_act",
                                                            "hidden_activation",
                                                            "hidden_size",
                                                            "id2label",
                                                            "initial_context_length",
                                                            "initializer_range",
                                                            "inlay_attention",
                                                            "intermediate_size",
                                                            "label2id",
                                                            "layer_types",
                                                            "logits_scaling",
                                                            "max_position_embeddings",
                                                            "max_window_layers",
                                                            "mlp_bias",
                                                            "mlp_only_layers",
                                                            "model_type",
                                                            "moe_intermediate_size",
                                                            "no_rope_layer_interval",
                                                            "no_rope_layers",
                                                            "norm_topk_prob",
                                                            "num_attention_heads",
                                                            "num_experts",
                                                            "num_experts_per_tok",
                                                            "num_hidden_layers",
                                                            "num_key_value_heads",
                                                            "num_local_experts",
                                                            "original_max_position_embeddings",
                                                            "output_attentions",
                                                            "output_hidden_states",
                                                            "output_router_logits",
                                                            "pad_token_id",
                                                            "partial_rotary_factor",
                                                            "per_layer_config",
                                                            "position_embedding_type",
                                                            "pretraining_tp",
                                                            "quantization_config",
                                                            "query_pre_attn_scalar",
                                                            "resid_pdrop",
                                                            "residual_multiplier",
                                                            "return_dict",
                                                            "rms_norm_eps",
                                                            "rope_local_base_freq",
                                                            "rope_parameters",
                                                            "rope_scaling",
                                                            "rope_theta",
                                                            "router_aux_loss_coef",
                                                            "router_jitter_noise",
                                                            "sep_token_id",
                                                            "shared_intermediate_size",
                                                            "sliding_window",
                                                            "sliding_window_pattern",
                                                            "swiglu_alpha",
                                                            "swiglu_limit",
                                                            "tie_word_embeddings",
                                                            "torch_dtype",
                                                            "transformers_version",
                                                            "unsloth_fixed",
                                                            "unsloth_version",
                                                            "use_bidirectional_attention",
                                                            "use_cache",
                                                            "use_sliding_window",
                                                            "vocab_size"};

std::string joined(const std::set<std::string>& names, std::size_t most) {
  std::string text;
  std::size_t count = 0;
  for (const std::string& name : names) {
    if (count++ == most) return text + fmt::format(" and {} more", names.size() - most);
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

// Numbers between dots are a layer's or an expert's.
std::string pattern_of(const std::string& tensor) {
  std::string pattern;
  for (const std::string& word : split(tensor, '.')) {
    const bool number = !word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
    pattern += (pattern.empty() ? "" : ".") + (number ? "{}" : word);
  }
  return pattern;
}

// A family that can read the configuration, and the tensors that it would miss and that it would not know.
struct Reading {
  std::string family;
  ModelConfig config;
  std::set<std::string> missing, unknown;
  std::size_t distance() const { return missing.size() + unknown.size(); }
};

std::vector<Reading> readings(const io::Json& json, const std::set<std::string>& tensors) {
  std::vector<Reading> result;
  for (const Family& family : families()) {
    try {
      Reading reading{
          .family = std::string(family.model_type), .config = family.parse(json), .missing = {}, .unknown = {}};
      ModelParameters parameters(reading.config);
      std::set<std::string> wanted;
      for (const CheckpointTensor& tensor : checkpoint_tensors(parameters)) wanted.insert(pattern_of(tensor.name));
      if (!tensors.empty()) {
        std::ranges::set_difference(wanted, tensors, std::inserter(reading.missing, reading.missing.end()));
        std::ranges::set_difference(tensors, wanted, std::inserter(reading.unknown, reading.unknown.end()));
      }
      result.push_back(std::move(reading));
    } catch (const UserError&) {  // not this one, then
    }
  }
  std::ranges::stable_sort(result, {}, &Reading::distance);
  return result;
}

std::set<std::string> tensor_patterns(const std::filesystem::path& folder) {
  std::set<std::string> result;
  if (!io::exists(folder / "model.safetensors") && !io::exists(folder / "model.safetensors.index.json")) return result;
  const io::Checkpoint checkpoint(folder);
  for (const std::string& name : checkpoint.names()) result.insert(pattern_of(name));
  return result;
}

}  // namespace

std::string describe_unknown(const io::Json& whole, const std::filesystem::path& folder) {
  // Beside images or sound, a text model's keys stand apart.
  const io::Json json = whole.find_object("text_config").value_or(whole);
  const std::set<std::string> known = known_model_types();
  std::set<std::string> strange;
  for (const std::string& key : json.keys()) {
    if (std::ranges::find(ordinary_keys, key) == ordinary_keys.end()) strange.insert(key);
  }
  std::string text = fmt::format("model_type '{}' is not a family that inlay trains\n  families: {}\n",
                                 whole.string("model_type"), joined(known, known.size()));
  if (whole.has("text_config")) text += "  of its text model, whose keys are under text_config:\n";
  text += strange.empty() ? "  keys: none that is unknown to the families\n"
                          : fmt::format("  keys that no family has: {}\n", joined(strange, 40));
  const std::set<std::string> tensors = tensor_patterns(folder);
  const std::vector<Reading> found = readings(json, tensors);
  if (found.empty()) {
    text += "  none of them can read the configuration\n";
  } else if (tensors.empty() && found.size() == 1) {
    text +=
        fmt::format("  read as {}, it would have {} parameters; there are no weights here to compare tensors with\n",
                    found[0].family, format_count(found[0].config.parameter_count()));
  } else if (tensors.empty()) {
    std::set<std::string> readers;
    for (const Reading& reading : found) readers.insert(reading.family);
    text += fmt::format(
        "  its sizes can be read as those of {}; there are no weights here whose names would tell which is nearest\n",
        joined(readers, readers.size()));
  } else if (found[0].distance() == 0) {
    text += fmt::format("  its tensors have the names of {}\n", found[0].family);
  } else {
    const Reading& nearest = found[0];
    text += fmt::format("  nearest by the names of tensors: {}\n", nearest.family);
    if (!nearest.missing.empty()) text += fmt::format("    it lacks: {}\n", joined(nearest.missing, 20));
    if (!nearest.unknown.empty()) text += fmt::format("    it has in addition: {}\n", joined(nearest.unknown, 20));
  }
  return text + "  CONTRIBUTING.md says how to add a family";
}

}  // namespace inlay::model
