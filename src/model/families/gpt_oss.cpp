#include <fmt/format.h>

#include "model/families/family.h"
#include "ops/expert_glu.h"

namespace inlay::model {

namespace {

RopeConfig published_rope() {
  return {.kind = RopeKind::yarn, .factor = 32, .truncate = false, .original_positions = 4096};
}

// transformers has these numbers in its code, and reads neither key: what another one would mean is anyone's guess.
void check_activation(const io::Json& json) {
  for (const auto& [key, supported] : {std::pair("swiglu_alpha", ops::glu_slope), {"swiglu_limit", ops::glu_limit}}) {
    const auto given = json.find_number(key);
    if (given && static_cast<float>(*given) != supported)
      json.fail(key, fmt::format("only {} is supported", supported));
  }
}

}  // namespace

ModelConfig parse_gpt_oss(const io::Json& json) {
  ModelConfig c = parse_common(json, {.theta = 150000.0,
                                      .norm_eps = 1e-5,
                                      .max_positions = 131072,
                                      .kv_heads = 8,
                                      .head_dim = 64,
                                      .rope = published_rope(),
                                      .quantization_known = true});
  c.qkv_bias = c.output_bias = json.find_boolean("attention_bias").value_or(true);
  c.sinks = true;
  // Window and full attention in turn, beginning with a window, unless layer_types says otherwise.
  set_windows(json, c, parse_window(json, 128), [](std::int64_t l) { return l % 2 == 0; });
  check_activation(json);
  if (const auto quantized = json.find_object("quantization_config")) {
    const std::string method = quantized->string("quant_method");
    if (method != "mxfp4") {
      quantized->fail("quant_method", fmt::format("'{}' is not supported; inlay reads mxfp4 experts", method));
    }
  }
  // The published files do not say what the tensors beside the MXFP4 ones are.
  if (!json.has("dtype") && !json.has("torch_dtype")) c.dtype = DType::bf16;

  parse_experts(json, c, {.count_keys = {"num_local_experts", "num_experts"}, .balance = 0.001});
  c.experts.intermediate = c.intermediate;
  c.experts.clamped_glu = c.experts.router_bias = c.experts.bias = true;
  for (LayerConfig& layer : c.layers) layer.experts = true;
  c.names.experts_stacked = true;
  c.names.expert_down = "model.layers.{}.mlp.experts.down_proj";
  return c;
}

}  // namespace inlay::model
