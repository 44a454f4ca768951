#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"

// What a model is, in terms that no family name appears in: the blocks read this and nothing else.
namespace inlay::model {

enum class RopeKind : std::uint8_t { plain, linear, llama3, yarn, longrope };

struct RopeConfig {
  RopeKind kind = RopeKind::plain;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  bool truncate = true;                                  // yarn: round the correction range to whole dimensions
  double attention_factor = 0.0;  // yarn, longrope: scales cosine and sine; 0 means 0.1·ln(factor) + 1
  // longrope: what each pair's frequency is divided by, in documents of up to original_positions tokens and in longer
  // ones.
  std::vector<double> short_factors, long_factors;
  std::int64_t original_positions = 0;
  std::int64_t rotary_dim = 0;  // how much of a head rotates
  bool neighbours = false;      // pairs are (2i, 2i + 1), else (i, i + rotary_dim / 2)
};

// A mixture of experts in place of a layer's MLP.
struct ExpertsConfig {
  std::int64_t count = 0, chosen = 0;  // of each layer, and of each token; 0: the model is dense
  std::int64_t intermediate = 0;
  // The activation: (up + 1) · gate · sigmoid(1.702 gate) with both clamped at 7 and in alternating columns; else
  // SwiGLU.
  bool clamped_glu = false;
  bool normalized = true;  // a token's weights sum to 1; else they are what a softmax over all experts says
  bool router_bias = false, bias = false;
  double balance = 0;  // factor of the load-balancing loss; 0: none
};

enum class LayerRope : std::uint8_t { none, model, local };  // no rotation, the model's, or its local one

struct LayerConfig {
  std::int64_t window = 0;  // sliding attention window, 0: none
  bool experts = false;     // a mixture of experts, else one MLP
  LayerRope rope = LayerRope::model;
};

// How a checkpoint spells its tensors; "{}" stands for the layer. Linears are named without ".weight" and ".bias".
struct NameMap {
  std::string embedding = "model.embed_tokens.weight";
  std::string final_norm = "model.norm.weight";
  std::string head = "lm_head.weight";
  std::string attention_norm = "model.layers.{}.input_layernorm.weight";
  std::string q = "model.layers.{}.self_attn.q_proj";
  std::string k = "model.layers.{}.self_attn.k_proj";
  std::string v = "model.layers.{}.self_attn.v_proj";
  std::string qkv;  // the three in one tensor, where it is not empty
  std::string output = "model.layers.{}.self_attn.o_proj";
  std::string q_norm = "model.layers.{}.self_attn.q_norm.weight";
  std::string k_norm = "model.layers.{}.self_attn.k_norm.weight";
  std::string attention_output_norm = "model.layers.{}.post_attention_layernorm.weight";
  std::string mlp_norm = "model.layers.{}.post_attention_layernorm.weight";
  std::string mlp_output_norm = "model.layers.{}.post_feedforward_layernorm.weight";
  std::string gate = "model.layers.{}.mlp.gate_proj";
  std::string up = "model.layers.{}.mlp.up_proj";
  std::string gate_up;  // both in one tensor, where it is not empty
  std::string down = "model.layers.{}.mlp.down_proj";
  std::string sinks = "model.layers.{}.self_attn.sinks";
  std::string router = "model.layers.{}.mlp.router";
  // A tensor for every expert, the second "{}", named like other linears; or, with experts_stacked, one for all experts
  // of a layer, [experts, in, out], with its bias under the name and "_bias".
  bool experts_stacked = false;
  std::string expert_gate = "model.layers.{}.mlp.experts.{}.gate_proj";
  std::string expert_up = "model.layers.{}.mlp.experts.{}.up_proj";
  std::string expert_gate_up = "model.layers.{}.mlp.experts.gate_up_proj";  // stacked, gate and up in one
  std::string expert_down = "model.layers.{}.mlp.experts.{}.down_proj";
};

// Attention other than the family's own, which is causal, for all layers. It belongs to the model: one that was trained
// so computes something else under another mask.
struct AttentionText {
  std::string mask;              // which pairs are seen: "causal or prefix"
  std::string score;             // what becomes of a score: "softcap(50)"
  std::vector<float> head_bias;  // one a head, where the texts speak of head_bias

  bool given() const { return !mask.empty() || !score.empty(); }
  bool operator==(const AttentionText&) const = default;
};

// What opens the MLP's other half: silu, gelu as tanh approximates it, or gelu itself.
enum class MlpGate : std::uint8_t { silu, gelu_tanh, gelu };

enum class QkNorm : std::uint8_t { none, heads, whole };  // of every query and key head, or of all of them at once

struct ModelConfig {
  std::string model_type;  // as in config.json
  std::int64_t hidden = 0, intermediate = 0, vocab = 0;
  std::int64_t vocab_in_file = 0;  // rows of embedding and head there, where only the first `vocab` are read; 0: all
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t max_positions = 0;
  float norm_eps = 1e-6f;
  float norm_offset = 0;                // norms multiply by offset + weight
  bool input_norms = true;              // before attention and MLP
  bool output_norms = false;            // behind them, before what they answer joins the residual stream
  RopeConfig rope, local_rope;          // the second where layers say so
  float embedding_scale = 1;            // of embeddings as the layers see them
  bool embedding_scale_rounds = false;  // to the dtype of the computation
  float residual_scale = 1;             // of what attention and MLP answer
  float score_scale = 0;                // of q·k; 0: 1 / sqrt(head_dim)
  float score_softcap = 0;              // scores become cap · tanh(score / cap); 0: they stay
  float head_scale = 1;                 // of the final hidden state, and so of the logits
  float logit_softcap = 0;
  MlpGate gate = MlpGate::silu;
  bool tied_embeddings = false;
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  QkNorm qk_norm = QkNorm::none;
  bool sinks = false;  // a learned logit beside every head's scores
  AttentionText attention;
  ExpertsConfig experts;
  DType dtype = DType::f32;  // of the checkpoint
  std::int64_t bos = -1;     // the token that begins a text; -1: the configuration does not say
  std::vector<LayerConfig> layers;
  NameMap names;

  std::int64_t q_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  std::int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  std::int64_t expert_layers() const;  // how many layers have experts
  std::int64_t layer_count() const { return static_cast<std::int64_t>(layers.size()); }
  std::int64_t parameter_count() const;
};

}  // namespace inlay::model
