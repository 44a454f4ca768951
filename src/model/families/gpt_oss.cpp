#include <fmt/format.h>

#include "model/families/family.h"
#include "ops/expert_glu.h"

namespace inlay::model {

namespace {

// Window and full attention in turn, beginning with a window, unless layer_types says otherwise.
void parse_windows(const io::Json& json, ModelConfig& c) {
  const std::int64_t window = json.find_integer("sliding_window", io::positive_integer).value_or(128);
  const auto types = json.find_array("layer_types");
  if (types && types->size() != c.layers.size()) {
    json.fail("layer_types", fmt::format("names {} layers, but there are {}", types->size(), c.layers.size()));
  }
  for (std::size_t l = 0; l < c.layers.size(); ++l) {
    const bool sliding = types ? (*types)[l].as_string() == "sliding_attention" : l % 2 == 0;
    if (sliding) c.layers[l].window = window;
  }
}

}  // namespace

ModelConfig parse_gpt_oss(const io::Json& json) {
  ModelConfig c = parse_common(json);
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

  parse_experts(json, c, {.count_keys = {"num_local_experts", "num_experts"}, .balance = 0.9});
  c.experts.intermediate = c.intermediate;
  c.experts.clamped_glu = c.experts.router_bias = c.experts.bias = true;
  for (LayerConfig& layer : c.layers) layer.experts = true;
  c.names.experts_stacked = true;
  c.names.expert_down = "model.layers.{}.mlp.experts.down_proj";
  return c;
}

}  // namespace inlay::model
