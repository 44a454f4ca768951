#include "osft/layout.h"

#include <algorithm>
#include <functional>

#include "core/text.h"
#include "weights/masked_rows.h"
#include "weights/rank.h"

namespace inlay::osft {

namespace {

// What the configuration calls the first tensor of a parameter, whose others train with it; empty: not a matrix of
// these. A single expert's are called as an MLP's.
std::string target_name(const weights::Parameter& parameter, bool tied) {
  switch (parameter.role) {
    using enum weights::Role;
    case qkv: return "q";
    case attention_output: return "o";
    case gate_up: return "gate";
    case down: return "down";
    case router: return "router";
    case head: return "head";
    case embedding: return tied ? "head" : "";
    case norm:
    case bias:
    case sinks: return {};
  }
  return {};
}

bool holds(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

OsftTargets::OsftTargets(const OsftOptions& options, const model::ModelConfig& config, std::set<std::string> frozen)
    : options_(options), tied_(config.tied_embeddings), frozen_(std::move(frozen)) {
  if (!on_activations() && holds(options.targets, "head") && tied_) {
    user_error(
        "osft.targets: head: this model's head is its embedding, which has no decomposition; leave it out, or "
        "use basis: activations");
  }
  for (const auto& [first, second] : {std::pair{"q", "k"}, std::pair{"k", "v"}, std::pair{"gate", "up"}}) {
    if (targeted(first) != targeted(second)) {
      user_error("osft.targets: {} without {}: weights that share an input train together", first, second);
    }
  }
  model::ModelParameters parameters(config);
  bool any = false;
  parameters.for_each([&](weights::Parameter& p) { any = any || ratios(p); });
  if (!any) user_error("osft.targets: none of these trains in this model: {}", join(options.targets, ", "));
  for (const auto& [pattern, ratio] : options.ratios) {
    bool used = false;
    parameters.for_each([&](weights::Parameter& p) {
      if (!ratios(p)) return;
      for (const weights::Part& part : p.parts) used = used || matches(part.label(), pattern);
    });
    if (!used)
      user_error("osft.ratios: '{}' matches no target; a target is named like {}", pattern,
                 parameters.layers[0]->attention.output.parts[0].checkpoint_name);
  }
}

bool OsftTargets::targeted(const std::string& target) const {
  const auto& chosen = options_.targets;
  if (holds(chosen, target)) return true;
  const bool of_head = target == "head", of_mlp = holds({"gate", "up", "down", "router"}, target);
  if (holds(chosen, of_mlp ? "mlp" : "attention") && !of_head) return true;
  return holds(chosen, "auto") && (!of_head || on_activations());
}

std::optional<TargetRatios> OsftTargets::ratios(const weights::Parameter& parameter) const {
  const std::string name = target_name(parameter, tied_);
  if (name.empty() || !targeted(name) || frozen(parameter)) return std::nullopt;
  TargetRatios result;
  for (const weights::Part& part : parameter.parts) {
    double ratio = options_.unfreeze_rank_ratio;
    for (const auto& [pattern, other] : options_.ratios) {
      if (matches(part.label(), pattern)) ratio = other;
    }
    result.parts.push_back(ratio);
  }
  if (on_activations() &&
      std::adjacent_find(result.parts.begin(), result.parts.end(), std::not_equal_to<>()) != result.parts.end()) {
    user_error("osft.ratios: the tensors of {} share their input, and with basis activations one ratio",
               parameter.name);
  }
  return result;
}

bool OsftTargets::frozen(const weights::Parameter& parameter) const {
  if (frozen_.contains(parameter.name)) return true;
  // A norm's scale and a bias act on every token alike: an input that never rests. Letting them train forgets a little
  // more and learns nothing (docs/forgetting.md), so basis activations leaves them.
  const bool automatic = holds(options_.freeze, "auto") && on_activations();
  const auto asked = [&](const std::string& what) {
    return holds(options_.freeze, what) || (automatic && (what == "norms" || what == "biases"));
  };
  switch (parameter.role) {
    using enum weights::Role;
    case embedding: return asked("embeddings") || (tied_ && asked("head"));
    case head: return asked("head");
    case norm: return asked("norms");
    case bias:
    case sinks: return asked("biases");
    default: return false;
  }
}

namespace {

// The share that trains, where a layer's importance moves what it freezes.
double adapted(double ratio, double importance, double wanted_floor) {
  const double target = 1 - ratio;
  const double floor = std::min(wanted_floor, target);  // where hardly anything is frozen, all layers freeze as much
  return 1 - std::clamp(floor + importance * (target - floor), floor, 0.999999);
}

// The cheapest way to the gradients of a target in a step of so many calls. The rows of many experts are multiplied at
// once, which factors cannot.
weights::Route route_of(const weights::Parameter& p, const weights::RouteShape& shape) {
  if (p.expert < 0) return weights::cheapest_route(shape);
  using enum weights::Route;
  return weights::route_cost(direct, shape) < weights::route_cost(dense, shape) ? direct : dense;
}

}  // namespace

OsftLayout nominal_layout(const OsftTargets& targets, const model::ModelConfig& config, const StepShape& step,
                          const std::vector<double>& importance) {
  OsftLayout layout;
  layout.place = targets.options().basis_on;
  const bool masks = targets.on_activations() && targets.options().tokens == TrainedTokens::unseen;
  model::ModelParameters parameters(config);
  parameters.for_each([&](weights::Parameter& p) {
    if (targets.frozen(p)) layout.frozen.push_back(p.name);
    auto ratios = targets.ratios(p);
    if (masks && p.role == weights::Role::embedding && !ratios && !targets.frozen(p)) layout.masks_embedding = true;
    if (!ratios) return;
    if (!importance.empty() && p.layer >= 0) {
      for (double& ratio : ratios->parts) {
        ratio = adapted(ratio, importance[static_cast<std::size_t>(p.layer)], targets.options().adaptive_floor);
      }
    }
    const std::int64_t in = p.shape[1];
    if (targets.on_activations()) {
      const std::int64_t free = weights::trainable_rank(ratios->parts.front(), in);
      layout.targets[p.name] = weights::InputLayout{
          .free = free, .frozen = in - free, .masks_rows = masks && p.role == weights::Role::embedding};
      return;
    }
    const std::int64_t tile =
        p.in_feed_forward() && step.mlp_tile > 0 ? std::min(step.mlp_tile, step.tokens) : step.tokens;
    const std::int64_t calls = step.micro_batches * (tile > 0 ? (step.tokens + tile - 1) / tile : 1);
    weights::FactorLayout factors;
    std::int64_t rank = 0;
    for (std::size_t i = 0; i < p.parts.size(); ++i) {
      const std::int64_t full = std::min(p.parts[i].rows, in);
      const std::int64_t free = weights::trainable_rank(ratios->parts[i], full);
      factors.parts.push_back({.free = free, .frozen = full - free});
      rank = std::max(rank, free);
    }
    const std::optional<weights::Route> forced = targets.options().route;
    const model::ExpertsConfig& experts = config.experts;
    const std::int64_t rows = p.expert >= 0 ? tile * experts.chosen / experts.count : tile;  // in the mean
    factors.route =
        forced ? *forced
               : route_of(p, {.out = p.parts.front().rows, .in = in, .rank = rank, .tokens = rows, .calls = calls});
    factors.one_call = calls == 1;
    layout.targets[p.name] = factors;
  });
  return layout;
}

weights::WeightPlan weight_plan(const OsftLayout& layout) {
  weights::WeightPlan plan;
  plan.frozen.insert(layout.frozen.begin(), layout.frozen.end());
  if (layout.masks_embedding) plan.kinds["embedding"] = std::make_shared<weights::MaskedRowsKind>();
  for (const auto& [name, ranks] : layout.targets) {
    if (const auto* input = std::get_if<weights::InputLayout>(&ranks)) {
      plan.kinds[name] = std::make_shared<weights::InputKind>(*input, layout.place);
    } else {
      plan.kinds[name] = std::make_shared<weights::FactorKind>(std::get<weights::FactorLayout>(ranks), layout.place);
    }
  }
  return plan;
}

}  // namespace inlay::osft
