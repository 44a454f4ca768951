#include <fmt/format.h>

#include "model/families/family.h"
#include "ops/expert_glu.h"

namespace inlay::model {

namespace {

// Window and full attention in turn, beginning with a window, unless layer_types says otherwise.
void parse_windows(const io::Json& json, ModelConfig& c) {
  const std::int64_t window = parse_window(json, 128);
  const auto types = parse_layer_types(json, c.layers.size());
  for (std::size_t l = 0; l < c.layers.size(); ++l) {
    if (types ? (*types)[l] : l % 2 == 0) c.layers[l].window = window;
  }
}

}  // namespace

ModelConfig parse_gpt_oss(const io::Json& json) {
  ModelConfig c = parse_common(json, {.theta = 150000.0, .norm_eps = 1e-5, .head_dim = 64, .quantization_known = true});
  c.qkv_bias = c.output_bias = json.find_boolean("attention_bias").value_or(true);
  c.sinks = true;
  parse_windows(json, c);
  if (json.find_number("swiglu_limit").value_or(ops::glu_limit) != ops::glu_limit) {
    json.fail("swiglu_limit", fmt::format("only {} is supported", ops::glu_limit));
  }
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
  if (!json.has("rope_parameters") && !json.has("rope_scaling")) {
    json.fail("rope_scaling", "missing; this family's rotation is scaled (yarn), and the file must say how");
  }
  return c;
}

}  // namespace inlay::model
