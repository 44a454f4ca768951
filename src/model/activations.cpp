#include "model/activations.h"

#include "core/error.h"

namespace inlay::model {

namespace {
constexpr std::array<std::string_view, activation_count> names = {"attention_norm", "qkv",      "attention",
                                                                  "residual",       "mlp_norm", "gate_up"};
}

std::string_view name_of(Activation activation) { return names[static_cast<std::size_t>(activation)]; }

ActivationPolicy ActivationPolicy::keep_all() { return {}; }

ActivationPolicy ActivationPolicy::recompute_all() {
  ActivationPolicy policy;
  policy.table_.fill(Storage::recompute);
  return policy;
}

ActivationPolicy ActivationPolicy::parse(std::string_view text) {
  if (text == "keep") return keep_all();
  if (text == "recompute") return recompute_all();
  const ActivationPolicy no_norms =
      keep_all().with(Activation::attention_norm, Storage::recompute).with(Activation::mlp_norm, Storage::recompute);
  if (text == "recompute_norms") return no_norms;
  if (text == "recompute_mlp") return no_norms.with(Activation::gate_up, Storage::recompute);

  ActivationPolicy policy = recompute_all();
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view name = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    bool known = false;
    for (std::size_t index = 0; index < activation_count; ++index) {
      if (names[index] != name) continue;
      policy.table_[index] = Storage::keep;
      known = true;
    }
    if (!known) {
      user_error(
          "activation policy '{}' is unknown; write keep, recompute, recompute_norms, recompute_mlp, or the names to "
          "keep out of attention_norm, qkv, attention, residual, mlp_norm, gate_up, separated by commas",
          name);
    }
  }
  return policy;
}

std::string ActivationPolicy::str() const {
  if (*this == keep_all()) return "keep";
  if (*this == recompute_all()) return "recompute";
  std::string text;
  for (std::size_t index = 0; index < activation_count; ++index) {
    if (table_[index] == Storage::keep) text += (text.empty() ? "" : ",") + std::string(names[index]);
  }
  return text;
}

}  // namespace inlay::model
