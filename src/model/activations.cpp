#include "model/activations.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "core/text.h"

namespace inlay::model {

namespace {
constexpr std::array<std::string_view, activation_count> names = {
    "input", "attention_norm", "qkv", "attention", "residual", "mlp_norm", "gate_up", "attention_answer", "mlp_answer"};

// A list of activations to keep.
LayerPolicy parse_kept(std::string_view text) {
  LayerPolicy policy = LayerPolicy::recompute_all();
  for (const std::string& name : split(text, ',')) {
    const auto found = std::find(names.begin() + 1, names.end(), name);
    if (found == names.end()) {
      user_error(
          "activation policy '{}' is unknown; write keep, recompute_norms, recompute_mlp, recompute, "
          "offload_attention, offload, offload_half, offload_mlp, offload_mlp_half, offload_both, offload_both_half, "
          "or the "
          "names to keep among attention_norm, qkv, attention, "
          "residual, mlp_norm, gate_up, attention_answer, mlp_answer, separated by commas",
          name);
    }
    policy = policy.with(static_cast<Activation>(found - names.begin()), Storage::keep);
  }
  return policy;
}

}  // namespace

std::string_view name_of(Activation activation) { return names[static_cast<std::size_t>(activation)]; }

LayerPolicy LayerPolicy::recompute_all() {
  LayerPolicy policy;
  policy.table_.fill(Storage::recompute);
  return policy.with(Activation::input, Storage::keep);
}

ActivationPolicy::Segment ActivationPolicy::parse_segment(std::string_view name) {
  const auto uniform = [](const LayerPolicy& policy) { return Segment{0, policy, policy}; };
  const LayerPolicy all = LayerPolicy::keep_all(), none = LayerPolicy::recompute_all();
  const LayerPolicy no_norms =
      all.with(Activation::attention_norm, Storage::recompute).with(Activation::mlp_norm, Storage::recompute);
  const LayerPolicy no_gate_up = no_norms.with(Activation::gate_up, Storage::recompute);
  const LayerPolicy offload = none.with(Activation::input, Storage::offload);
  const LayerPolicy both = offload.with(Activation::attention, Storage::offload);
  const auto beside = [](const LayerPolicy& policy) { return policy.with(Activation::gate_up, Storage::offload); };
  if (name == "keep") return uniform(all);
  if (name == "recompute_norms") return uniform(no_norms);
  if (name == "recompute_mlp") return uniform(no_gate_up);
  if (name == "recompute") return uniform(none);
  if (name == "offload_attention") return uniform(both);
  if (name == "offload") return uniform(offload);
  if (name == "offload_half") return {0, offload, none.with(Activation::input, Storage::recompute)};
  // Halves are the odd layers: the last of an even number stays where it is.
  if (name == "offload_mlp") return uniform(beside(no_gate_up));
  if (name == "offload_mlp_half") return {0, no_gate_up, beside(no_gate_up)};
  if (name == "offload_both") return uniform(beside(both));
  if (name == "offload_both_half") return {0, both, beside(both)};
  return uniform(parse_kept(name));
}

const std::vector<std::string_view>& ActivationPolicy::ladder() {
  static const std::vector<std::string_view> rungs = {"keep",      "recompute_norms", "recompute_mlp",
                                                      "attention", "recompute",       "offload_attention",
                                                      "offload",   "offload_half"};
  return rungs;
}

ActivationPolicy ActivationPolicy::parse(std::string_view text) {
  ActivationPolicy policy;
  policy.text_ = text;
  const std::vector<std::string> pieces = split(text, '+');
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::string_view name = pieces[i];
    std::int64_t layers = 0;
    if (const std::size_t star = name.find('*'); star != std::string_view::npos) {
      const auto [end, error] = std::from_chars(name.data(), name.data() + star, layers);
      if (error != std::errc() || end != name.data() + star || layers < 1) {
        user_error("activation policy '{}': expected a number of layers before the *, as in 12*recompute+keep", text);
      }
      name = name.substr(star + 1);
    }
    if ((layers == 0) != (i + 1 == pieces.size())) {
      user_error("activation policy '{}': every part but the last needs a number of layers, as in 12*recompute+keep",
                 text);
    }
    policy.segments_.push_back(parse_segment(name));
    policy.segments_.back().layers = layers;
  }
  return policy;
}

const LayerPolicy& ActivationPolicy::of(std::int64_t layer) const {
  std::int64_t before = 0;
  for (const Segment& segment : segments_) {
    before += segment.layers;
    if (layer < before || segment.layers == 0) return layer % 2 == 0 ? segment.even : segment.odd;
  }
  INLAY_ASSERT(false, "policy {} does not reach layer {}", text_, layer);
  return segments_.back().even;
}

bool ActivationPolicy::offloads() const {
  const auto leaves = [](const LayerPolicy& p) {
    return p.offloads(Activation::input) || p.offloads(Activation::attention) || p.offloads(Activation::gate_up);
  };
  return std::any_of(segments_.begin(), segments_.end(),
                     [&](const Segment& s) { return leaves(s.even) || leaves(s.odd); });
}

}  // namespace inlay::model
