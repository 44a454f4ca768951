#include "model/parameters.h"

namespace inlay::model {

using weights::Parameter;
using weights::Part;

namespace {

std::string layer_name(const std::string& pattern, std::int64_t layer) {
  std::string name = pattern;
  if (const auto at = name.find("{}"); at != std::string::npos) name.replace(at, 2, std::to_string(layer));
  return name;
}

Parameter single(std::string name, const std::string& checkpoint_name, Shape shape) {
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.parts = {Part{checkpoint_name, 0, shape[0]}};
  parameter.shape = shape;
  return parameter;
}

// Several checkpoint tensors stacked along their rows; columns 0 makes a vector (a bias).
Parameter stacked(std::string name, std::vector<std::pair<std::string, std::int64_t>> pieces, std::int64_t columns) {
  Parameter parameter;
  parameter.name = std::move(name);
  std::int64_t rows = 0;
  for (auto& [checkpoint_name, count] : pieces) {
    parameter.parts.push_back({std::move(checkpoint_name), rows, count});
    rows += count;
  }
  parameter.shape = columns > 0 ? Shape{rows, columns} : Shape{rows};
  return parameter;
}

std::unique_ptr<LayerParameters> layer_parameters(const ModelConfig& c, std::int64_t layer) {
  const NameMap& names = c.names;
  const auto named = [&](const std::string& pattern) { return layer_name(pattern, layer); };
  const std::string ours = "layers." + std::to_string(layer) + ".";

  auto result = std::make_unique<LayerParameters>();
  AttentionParameters& a = result->attention;
  a.norm = single(ours + "attention.norm", named(names.attention_norm), {c.hidden});
  const auto qkv = [&](const std::string& suffix) {
    return std::vector<std::pair<std::string, std::int64_t>>{{named(names.q) + suffix, c.q_width()},
                                                             {named(names.k) + suffix, c.kv_width()},
                                                             {named(names.v) + suffix, c.kv_width()}};
  };
  a.qkv = stacked(ours + "attention.qkv", qkv(".weight"), c.hidden);
  if (c.qkv_bias) a.qkv_bias = stacked(ours + "attention.qkv_bias", qkv(".bias"), 0);
  a.output = single(ours + "attention.output", named(names.output) + ".weight", {c.hidden, c.q_width()});
  if (c.output_bias) a.output_bias = single(ours + "attention.output_bias", named(names.output) + ".bias", {c.hidden});
  if (c.qk_norm) {
    a.q_norm = single(ours + "attention.q_norm", named(names.q_norm), {c.head_dim});
    a.k_norm = single(ours + "attention.k_norm", named(names.k_norm), {c.head_dim});
  }

  MlpParameters& m = result->mlp;
  m.norm = single(ours + "mlp.norm", named(names.mlp_norm), {c.hidden});
  const auto gate_up = [&](const std::string& suffix) {
    return std::vector<std::pair<std::string, std::int64_t>>{{named(names.gate) + suffix, c.intermediate},
                                                             {named(names.up) + suffix, c.intermediate}};
  };
  m.gate_up = stacked(ours + "mlp.gate_up", gate_up(".weight"), c.hidden);
  m.down = single(ours + "mlp.down", named(names.down) + ".weight", {c.hidden, c.intermediate});
  if (c.mlp_bias) {
    m.gate_up_bias = stacked(ours + "mlp.gate_up_bias", gate_up(".bias"), 0);
    m.down_bias = single(ours + "mlp.down_bias", named(names.down) + ".bias", {c.hidden});
  }
  return result;
}

}  // namespace

ModelParameters::ModelParameters(const ModelConfig& config) {
  embedding = single("embedding", config.names.embedding, {config.vocab, config.hidden});
  final_norm = single("final_norm", config.names.final_norm, {config.hidden});
  if (!config.tied_embeddings) head = single("head", config.names.head, {config.vocab, config.hidden});
  for (std::int64_t layer = 0; layer < config.layer_count(); ++layer) layers.push_back(layer_parameters(config, layer));
}

void ModelParameters::for_each_in_layers(const std::function<void(std::int64_t, Parameter&)>& visit) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto visit_present = [&](Parameter& parameter) {
      if (parameter.shape.rank() > 0) visit(static_cast<std::int64_t>(i), parameter);
    };
    AttentionParameters& a = layers[i]->attention;
    for (Parameter* p : {&a.norm, &a.qkv, &a.qkv_bias, &a.q_norm, &a.k_norm, &a.output, &a.output_bias})
      visit_present(*p);
    MlpParameters& m = layers[i]->mlp;
    for (Parameter* p : {&m.norm, &m.gate_up, &m.gate_up_bias, &m.down, &m.down_bias}) visit_present(*p);
  }
}

void ModelParameters::for_each(const std::function<void(Parameter&)>& visit) {
  const auto visit_present = [&](Parameter& parameter) {
    if (parameter.shape.rank() > 0) visit(parameter);
  };
  visit_present(embedding);
  for_each_in_layers([&](std::int64_t, Parameter& parameter) { visit(parameter); });
  visit_present(final_norm);
  visit_present(head);
}

}  // namespace inlay::model
