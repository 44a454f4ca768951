#include "model/parameters.h"

#include <fmt/format.h>

namespace inlay::model {

using weights::Parameter;
using weights::Part;
using weights::Role;

namespace {

std::string layer_name(const std::string& pattern, std::int64_t layer) {
  std::string name = pattern;
  if (const auto at = name.find("{}"); at != std::string::npos) name.replace(at, 2, std::to_string(layer));
  return name;
}

Parameter single(Role role, std::string name, const std::string& checkpoint_name, Shape shape) {
  Parameter parameter;
  parameter.role = role;
  parameter.name = std::move(name);
  parameter.parts = {Part{checkpoint_name, 0, shape[0]}};
  parameter.shape = shape;
  return parameter;
}

// Names of checkpoint tensors, and how many rows each has.
using Pieces = std::vector<std::pair<std::string, std::int64_t>>;

// Several checkpoint tensors stacked along their rows; columns 0 makes a vector (a bias).
Parameter stacked(Role role, std::string name, Pieces parts, std::int64_t columns) {
  Parameter parameter;
  parameter.role = role;
  parameter.name = std::move(name);
  std::int64_t rows = 0;
  for (auto& [checkpoint_name, count] : parts) {
    parameter.parts.push_back({std::move(checkpoint_name), rows, count});
    rows += count;
  }
  parameter.shape = columns > 0 ? Shape{rows, columns} : Shape{rows};
  return parameter;
}

// Experts that share their tensors: gate and up are one, and a bias has a row for each of them.
void add_stacked_experts(MoeParameters& m, const ModelConfig& c, const std::string& ours,
                         const std::function<std::string(const std::string&)>& named) {
  const ExpertsConfig& e = c.experts;
  const auto expert = [&](Role role, const char* name, const std::string& pattern, std::int64_t index, Shape shape) {
    Parameter p = single(role, fmt::format("{}experts.{}.{}", ours, index, name), named(pattern), shape);
    p.parts[0].stacked = e.count;
    p.parts[0].index = index;
    p.expert = index;
    return p;
  };
  const auto bias = [&](const char* name, const std::string& pattern, std::int64_t width) {
    Parameter p = single(Role::bias, ours + name, named(pattern) + "_bias", {e.count, width});
    p.vectors = true;
    return p;
  };
  for (std::int64_t i = 0; i < e.count; ++i) {
    m.gate_up.push_back(expert(Role::gate_up, "gate_up", c.names.expert_gate_up, i, {2 * e.intermediate, c.hidden}));
    m.down.push_back(expert(Role::down, "down", c.names.expert_down, i, {c.hidden, e.intermediate}));
  }
  if (!e.bias) return;
  m.gate_up_bias = bias("gate_up_bias", c.names.expert_gate_up, 2 * e.intermediate);
  m.down_bias = bias("down_bias", c.names.expert_down, c.hidden);
}

// The router and the experts of a layer, each expert with matrices of its own.
MoeParameters moe_parameters(const ModelConfig& c, std::int64_t layer) {
  const NameMap& names = c.names;
  const ExpertsConfig& e = c.experts;
  const auto named = [&](const std::string& pattern) { return layer_name(pattern, layer); };
  const std::string ours = "layers." + std::to_string(layer) + ".mlp.";
  MoeParameters m;
  m.norm = single(Role::norm, ours + "norm", named(names.mlp_norm), {c.hidden});
  m.router = single(Role::router, ours + "router", named(names.router) + ".weight", {e.count, c.hidden});
  if (e.router_bias) m.router_bias = single(Role::bias, ours + "router_bias", named(names.router) + ".bias", {e.count});
  if (names.experts_stacked) {
    add_stacked_experts(m, c, ours, named);
    return m;
  }
  for (std::int64_t i = 0; i < e.count; ++i) {
    // The layer's number stands in the first place, the expert's in the second.
    const auto weight = [&](const std::string& pattern) { return layer_name(named(pattern), i) + ".weight"; };
    const std::string expert = ours + "experts." + std::to_string(i) + ".";
    m.gate_up.push_back(
        stacked(Role::gate_up, expert + "gate_up",
                {{weight(names.expert_gate), e.intermediate}, {weight(names.expert_up), e.intermediate}}, c.hidden));
    m.down.push_back(single(Role::down, expert + "down", weight(names.expert_down), {c.hidden, e.intermediate}));
    m.gate_up.back().expert = m.down.back().expert = i;
  }
  return m;
}

std::unique_ptr<LayerParameters> layer_parameters(const ModelConfig& c, std::int64_t layer) {
  const NameMap& names = c.names;
  const auto named = [&](const std::string& pattern) { return layer_name(pattern, layer); };
  const std::string ours = "layers." + std::to_string(layer) + ".";

  auto result = std::make_unique<LayerParameters>();
  AttentionParameters& a = result->attention;
  if (c.input_norms) a.norm = single(Role::norm, ours + "attention.norm", named(names.attention_norm), {c.hidden});
  const auto qkv = [&](const std::string& suffix) {
    if (!names.qkv.empty()) return Pieces{{named(names.qkv) + suffix, c.qkv_width()}};
    return Pieces{{named(names.q) + suffix, c.q_width()},
                  {named(names.k) + suffix, c.kv_width()},
                  {named(names.v) + suffix, c.kv_width()}};
  };
  a.qkv = stacked(Role::qkv, ours + "attention.qkv", qkv(".weight"), c.hidden);
  if (c.qkv_bias) a.qkv_bias = stacked(Role::bias, ours + "attention.qkv_bias", qkv(".bias"), 0);
  a.output = single(Role::attention_output, ours + "attention.output", named(names.output) + ".weight",
                    {c.hidden, c.q_width()});
  if (c.output_bias)
    a.output_bias = single(Role::bias, ours + "attention.output_bias", named(names.output) + ".bias", {c.hidden});
  if (c.qk_norm != QkNorm::none) {
    const bool heads = c.qk_norm == QkNorm::heads;
    a.q_norm = single(Role::norm, ours + "attention.q_norm", named(names.q_norm), {heads ? c.head_dim : c.q_width()});
    a.k_norm = single(Role::norm, ours + "attention.k_norm", named(names.k_norm), {heads ? c.head_dim : c.kv_width()});
  }
  if (c.output_norms) {
    a.output_norm = single(Role::norm, ours + "attention.output_norm", named(names.attention_output_norm), {c.hidden});
  }
  if (c.sinks) a.sinks = single(Role::sinks, ours + "attention.sinks", named(names.sinks), {c.heads});

  if (c.layers[static_cast<std::size_t>(layer)].experts) {
    result->moe = moe_parameters(c, layer);
    return result;
  }
  MlpParameters& m = result->mlp;
  if (c.input_norms) m.norm = single(Role::norm, ours + "mlp.norm", named(names.mlp_norm), {c.hidden});
  const auto gate_up = [&](const std::string& suffix) {
    if (!names.gate_up.empty()) return Pieces{{named(names.gate_up) + suffix, 2 * c.intermediate}};
    return Pieces{{named(names.gate) + suffix, c.intermediate}, {named(names.up) + suffix, c.intermediate}};
  };
  m.gate_up = stacked(Role::gate_up, ours + "mlp.gate_up", gate_up(".weight"), c.hidden);
  m.down = single(Role::down, ours + "mlp.down", named(names.down) + ".weight", {c.hidden, c.intermediate});
  if (c.output_norms) {
    m.output_norm = single(Role::norm, ours + "mlp.output_norm", named(names.mlp_output_norm), {c.hidden});
  }
  if (c.mlp_bias) {
    m.gate_up_bias = stacked(Role::bias, ours + "mlp.gate_up_bias", gate_up(".bias"), 0);
    m.down_bias = single(Role::bias, ours + "mlp.down_bias", named(names.down) + ".bias", {c.hidden});
  }
  return result;
}

}  // namespace

ModelParameters::ModelParameters(const ModelConfig& config) {
  embedding = single(Role::embedding, "embedding", config.names.embedding, {config.vocab, config.hidden});
  final_norm = single(Role::norm, "final_norm", config.names.final_norm, {config.hidden});
  if (!config.tied_embeddings) head = single(Role::head, "head", config.names.head, {config.vocab, config.hidden});
  for (Parameter* p : {&embedding, &head}) {
    for (Part& part : p->parts) part.of_rows = config.vocab_in_file;
  }
  for (std::int64_t layer = 0; layer < config.layer_count(); ++layer) layers.push_back(layer_parameters(config, layer));
  for_each_in_layers([](std::int64_t layer, Parameter& parameter) { parameter.layer = layer; });
}

void ModelParameters::for_each_in_layers(const std::function<void(std::int64_t, Parameter&)>& visit) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto visit_present = [&](Parameter& parameter) {
      if (parameter.shape.rank() > 0) visit(static_cast<std::int64_t>(i), parameter);
    };
    AttentionParameters& a = layers[i]->attention;
    for (Parameter* p :
         {&a.norm, &a.qkv, &a.qkv_bias, &a.q_norm, &a.k_norm, &a.sinks, &a.output, &a.output_bias, &a.output_norm})
      visit_present(*p);
    MlpParameters& m = layers[i]->mlp;
    for (Parameter* p : {&m.norm, &m.gate_up, &m.gate_up_bias, &m.down, &m.down_bias, &m.output_norm})
      visit_present(*p);
    MoeParameters& x = layers[i]->moe;
    for (Parameter* p : {&x.norm, &x.router, &x.router_bias}) visit_present(*p);
    for (Parameter& p : x.gate_up) visit_present(p);
    visit_present(x.gate_up_bias);
    for (Parameter& p : x.down) visit_present(p);
    visit_present(x.down_bias);
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
