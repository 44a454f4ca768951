#include "model/fp8_options.h"

#include <algorithm>

#include "backend/grouped_fp8_matmul.h"
#include "core/text.h"
#include "weights/products.h"

namespace inlay::model {

bool Fp8Options::names(const std::string& entry, const weights::Parameter& p) {
  if (entry.find_first_not_of("0123456789") == entry.npos) return std::to_string(p.layer) == entry;
  return std::ranges::any_of(p.parts, [&](const weights::Part& part) { return matches(part.checkpoint_name, entry); });
}

// The GPU's library multiplies whole sixteens alone.
bool Fp8Options::takes(const weights::Parameter& p, const ModelConfig& config) const {
  using weights::Role;
  if (!p.is_matrix() || p.shape[0] % 16 != 0 || p.shape[1] % 16 != 0) return false;
  if (p.layer < 0) return head && p.role == (config.tied_embeddings ? Role::embedding : Role::head);
  const bool role =
      p.role == Role::qkv || p.role == Role::attention_output || p.role == Role::gate_up || p.role == Role::down;
  return role && p.layer >= skip_first && p.layer < config.layer_count() - skip_last &&
         (layers.empty() || std::ranges::any_of(layers, [&](const std::string& entry) { return names(entry, p); }));
}

// What reaches the head is a probability for every token of the vocabulary: most are smaller than the smallest code of
// e4m3 where one scale serves them all, but together they count. And its sums are the longest of all.
ops::Fp8Settings Fp8Options::settings_of(const weights::Parameter& p) const {
  ops::Fp8Settings result = settings;
  if (p.layer >= 0) return result;
  if (result.recipe != ops::Fp8Recipe::block) result.gradients = DType::e5m2;
  result.sums = ops::Fp8Sums::fp32;
  return result;
}

void Fp8Options::apply(weights::Exec& exec, const ModelConfig& config, const weights::WeightPlan& plan,
                       std::span<weights::Parameter> alike) const {
  std::vector<weights::Parameter*> taken;
  for (weights::Parameter& p : alike) {
    if (!plan.of(p).multiplies_value() || !takes(p, config)) continue;
    if (p.expert >= 0 && !backend::grouped_fp8_possible(exec.device())) continue;
    taken.push_back(&p);
  }
  if (!taken.empty()) weights::multiply_in_fp8(exec, taken, settings_of(*taken.front()));
}

}  // namespace inlay::model
