#include "gguf/architecture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>

#include "core/error.h"
#include "model/rope_table.h"

namespace inlay::gguf {

using model::ModelConfig;
using model::RopeConfig;
using model::RopeKind;

namespace {

enum class Biases : std::uint8_t { none, qkv, any };

struct Known {
  const char* model_type;
  const char* name;
  bool permutes;
  Biases biases;
  int window_period;  // all layers but every so many-th have the window; 0: none has
};

// llama.cpp's families, as its converter takes Hugging Face's. Windows, and which layers do not rotate, are in its
// code.
constexpr std::array known = {
    Known{"llama", "llama", true, Biases::any, 0},          Known{"mistral", "llama", true, Biases::none, 0},
    Known{"mixtral", "llama", true, Biases::none, 0},       Known{"qwen2", "qwen2", false, Biases::qkv, 0},
    Known{"qwen3", "qwen3", false, Biases::none, 0},        Known{"qwen3_moe", "qwen3moe", false, Biases::none, 0},
    Known{"gemma", "gemma", false, Biases::none, 0},        Known{"gemma2", "gemma2", false, Biases::none, 2},
    Known{"gemma3_text", "gemma3", false, Biases::none, 6}, Known{"phi3", "phi3", false, Biases::none, 0},
    Known{"granite", "granite", true, Biases::any, 0},      Known{"granitemoehybrid", "granite", true, Biases::none, 0},
    Known{"smollm3", "smollm3", true, Biases::none, 0},     Known{"olmo2", "olmo2", false, Biases::none, 0},
    Known{"olmo3", "olmo2", false, Biases::none, 4},        Known{"glm", "chatglm", false, Biases::qkv, 0},
    Known{"glm4", "glm4", false, Biases::qkv, 0},           Known{"gpt_oss", "gpt-oss", false, Biases::any, 2}};

template <class... Arguments>
[[noreturn]] void refuse(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  user_error("llama.cpp cannot run this model: {}", fmt::format(text, std::forward<Arguments>(arguments)...));
}

std::int64_t window_of(const ModelConfig& config) {
  std::int64_t window = 0;
  for (const model::LayerConfig& layer : config.layers) window = std::max(window, layer.window);
  return window;
}

void check_windows(const ModelConfig& config, const Known& family, Architecture& architecture) {
  const std::int64_t window = window_of(config);
  if (window == 0) return;
  if (family.window_period == 0) {
    if (window < config.max_positions) {
      architecture.notes.push_back(
          fmt::format("llama.cpp attends without this family's window: texts of more than {} tokens come out "
                      "differently there",
                      window));
    }
    return;
  }
  for (std::int64_t l = 0; l < config.layer_count(); ++l) {
    const bool expected = (l + 1) % family.window_period != 0;
    if ((config.layers[static_cast<std::size_t>(l)].window > 0) == expected) continue;
    refuse("there every layer has a window, except one in {}, but layer {} is {}", family.window_period, l,
           expected ? "without" : "with");
  }
}

void check_rotation(const ModelConfig& config) {
  const bool smollm = config.model_type == "smollm3";
  const bool nowhere = std::all_of(config.layers.begin(), config.layers.end(), [](const model::LayerConfig& layer) {
    return layer.rope == model::LayerRope::none;
  });
  if (nowhere && config.model_type == "granitemoehybrid") return;
  for (std::int64_t l = 0; l < config.layer_count(); ++l) {
    const bool rotates = config.layers[static_cast<std::size_t>(l)].rope != model::LayerRope::none;
    if (rotates != (smollm && (l + 1) % 4 == 0)) continue;
    refuse("layer {} {}, but there {}", l, rotates ? "rotates" : "does not rotate",
           smollm ? "all except every fourth layer of this family do" : "all layers of this family do");
  }
}

// The scale of scores is in its code.
void check_gemma(const ModelConfig& config) {
  if (config.score_scale == 0) return;
  const bool largest = config.layer_count() == (config.model_type == "gemma2" ? 46 : 62);
  const std::int64_t expected = largest ? config.hidden / config.heads : config.head_dim;
  if (std::abs(config.score_scale * std::sqrt(static_cast<double>(expected)) - 1) < 1e-4) return;
  refuse("there query_pre_attn_scalar is {} for a model of {} layers", expected, config.layer_count());
}

void check_experts(const ModelConfig& config) {
  if (config.experts.count == 0) return;
  if (config.expert_layers() != config.layer_count()) refuse("some layers have experts, and some have none");
  if (!config.experts.normalized) refuse("the weights of a token's experts do not add up to 1 (norm_topk_prob: false)");
}

}  // namespace

Architecture architecture_of(const ModelConfig& config) {
  const auto family =
      std::find_if(known.begin(), known.end(), [&](const Known& one) { return config.model_type == one.model_type; });
  if (family == known.end()) refuse("it has no family for model_type '{}'", config.model_type);
  if (config.attention.given()) refuse("it attends by a rule of its own (attention.mask or attention.score)");
  Architecture result{.name = family->name, .permutes = family->permutes, .notes = {}};
  const bool output_or_mlp = config.output_bias || config.mlp_bias;
  if ((family->biases != Biases::any && output_or_mlp) || (family->biases == Biases::none && config.qkv_bias)) {
    refuse("the family '{}' has no such biases there (attention_bias or mlp_bias in config.json)", config.model_type);
  }
  if (result.name == "qwen2" && !config.qkv_bias) refuse("the family 'qwen2' has biases of q, k and v there");
  const bool heads_fill =
      result.name == "qwen2" || result.name == "olmo2" || result.name == "chatglm" || result.name == "phi3";
  if (heads_fill && config.q_width() != config.hidden) {
    refuse("the heads of the family '{}' are {} wide there, hidden_size / num_attention_heads, but here {}",
           config.model_type, config.hidden / config.heads, config.head_dim);
  }
  result.fused_gate_up = result.name == "phi3" || result.name == "chatglm" || result.name == "glm4";
  result.mlp_norm_behind = result.name == "gpt-oss";
  check_windows(config, *family, result);
  check_rotation(config);
  if (result.name.starts_with("gemma")) check_gemma(config);
  check_experts(config);
  if (result.name == "olmo2" && config.local_rope.rotary_dim > 0 && config.local_rope.theta != config.rope.theta) {
    refuse("layers with a window rotate by a theta of {}, others by {}, but there both by the same",
           config.local_rope.theta, config.rope.theta);
  }
  const RopeKind kind = config.rope.kind;
  if (kind == RopeKind::llama3 && result.name != "llama" && result.name != "smollm3" && result.name != "granite") {
    refuse("rotary scaling of the kind llama3 is not supported for the family '{}' there", config.model_type);
  }
  if (kind == RopeKind::longrope && result.name != "phi3" && result.name != "llama") {
    refuse("rotary scaling of the kind longrope is not supported for the family '{}' there", config.model_type);
  }
  if (kind == RopeKind::longrope) {
    result.notes.push_back(fmt::format(
        "llama.cpp chooses LongRoPE's factors by the context that it is started with: the long ones above {} tokens",
        config.rope.original_positions));
  }
  return result;
}

void describe(Metadata& metadata, const Architecture& architecture, const ModelConfig& config) {
  const auto key = [&](const char* name) { return architecture.name + "." + name; };
  const auto number = [&](const char* name, std::int64_t value) {
    metadata.set(key(name), static_cast<std::uint32_t>(value));
  };
  const auto real = [&](const char* name, double value) { metadata.set(key(name), static_cast<float>(value)); };
  number("block_count", config.layer_count());
  number("context_length", config.max_positions);
  number("embedding_length", config.hidden);
  number("feed_forward_length", config.intermediate);
  number("attention.head_count", config.heads);
  number("attention.head_count_kv", config.kv_heads);
  number("attention.key_length", config.head_dim);
  number("attention.value_length", config.head_dim);
  real("attention.layer_norm_rms_epsilon", config.norm_eps);
  number("vocab_size", config.vocab);

  const RopeConfig& rope = config.rope;
  number("rope.dimension_count", rope.rotary_dim);
  real("rope.freq_base", rope.theta);
  if (architecture.name == "gemma3") real("rope.freq_base_swa", config.local_rope.theta);
  if (rope.kind == RopeKind::linear || rope.kind == RopeKind::yarn) {
    metadata.set(key("rope.scaling.type"), std::string(rope.kind == RopeKind::yarn ? "yarn" : "linear"));
    real("rope.scaling.factor", rope.factor);
  }
  if (rope.kind == RopeKind::longrope && architecture.name == "llama") {
    metadata.set(key("rope.scaling.type"), std::string("longrope"));
  }
  if (rope.kind == RopeKind::yarn || rope.kind == RopeKind::longrope) {
    number("rope.scaling.original_context_length", rope.original_positions);
  }
  if (rope.kind == RopeKind::yarn) {
    // There it multiplies what is our default.
    const double usual = 0.1 * std::log(rope.factor) + 1;
    const double given = rope.attention_factor == 0 ? usual : rope.attention_factor;
    if (std::abs(given / usual - 1) > 1e-6) real("rope.scaling.attn_factor", given / usual);
    if (rope.beta_fast != 32 || rope.beta_slow != 1) {
      real("rope.scaling.yarn_beta_fast", rope.beta_fast), real("rope.scaling.yarn_beta_slow", rope.beta_slow);
    }
  }
  if (rope.kind == RopeKind::longrope) real("rope.scaling.attn_factor", rope.attention_factor);

  if (const std::int64_t window = window_of(config);
      window > 0 &&
      (architecture.name.starts_with("gemma") || architecture.name == "olmo2" || architecture.name == "gpt-oss")) {
    number("attention.sliding_window", window);
    if (architecture.name == "olmo2") {
      std::vector<bool> pattern;
      for (const model::LayerConfig& layer : config.layers) pattern.push_back(layer.window > 0);
      metadata.set(key("attention.sliding_window_pattern"), pattern);
    }
  }
  if (architecture.name == "phi3") number("attention.sliding_window", 0);
  if (config.score_softcap > 0) real("attn_logit_softcapping", config.score_softcap);
  if (config.logit_softcap > 0) real("final_logit_softcapping", config.logit_softcap);
  if (architecture.name == "granite") {
    real("attention.scale", config.score_scale);
    real("embedding_scale", config.embedding_scale);
    real("residual_scale", config.residual_scale);
    real("logit_scale", 1 / config.head_scale);
    if (config.layers.front().rope == model::LayerRope::none) metadata.set(key("rope.scaling.finetuned"), false);
  }
  if (config.experts.count > 0) {
    number("expert_count", config.experts.count);
    number("expert_used_count", config.experts.chosen);
    if (architecture.name != "llama") number("expert_feed_forward_length", config.experts.intermediate);
  }
}

std::vector<RopeTensor> rope_tensors(const RopeConfig& rope) {
  const auto floats = [](const std::vector<double>& numbers) {
    return std::vector<float>(numbers.begin(), numbers.end());
  };
  if (rope.kind == RopeKind::longrope) {
    return {{"rope_factors_long.weight", floats(rope.long_factors)},
            {"rope_factors_short.weight", floats(rope.short_factors)}};
  }
  if (rope.kind != RopeKind::llama3) return {};
  RopeConfig plain = rope;
  plain.kind = RopeKind::plain;
  const std::vector<float> before = model::rope_frequencies(plain), after = model::rope_frequencies(rope);
  std::vector<float> divisors;
  for (std::size_t i = 0; i < before.size(); ++i) divisors.push_back(before[i] / after[i]);
  return {{"rope_freqs.weight", divisors}};
}

}  // namespace inlay::gguf
