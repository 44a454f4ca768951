#pragma once

#include "weights/kind.h"
#include "weights/products.h"

namespace inlay::weights {

// A plain matrix [out, in]. Frozen where the parameter has no gradient: accumulate() then does nothing.
class DenseWeight : public Weight {
 public:
  explicit DenseWeight(Parameter& parameter) : Weight(parameter) {}

  bool trainable() const override { return parameter().trains(); }
  std::optional<ops::Fp8Operands> fp8() const override { return plain_fp8(); }
  void forward(Exec& exec, View y, Grad mode, ConstView x, const ops::Call& call = {}) override;
  void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const ops::Call& call = {}) override;
  void accumulate(Exec& exec, ConstView dy, ConstView x, const ops::Call& call = {}) override;
  void accumulate_lookup(Exec& exec, ConstView dout, const ops::TokenGroups& groups) override;
  std::unique_ptr<WeightGroup> group(std::span<Weight* const> all) override;
  bool multiplies_plainly() const override { return true; }
};

// The products of plain matrices, in fp8 where all of them have such copies; what their gradients are is left to the
// kinds.
class DenseProducts : public WeightGroup {
 public:
  explicit DenseProducts(std::span<Weight* const> all);
  std::optional<GroupOperands> fp8() const override;  // of kinds that find their gradients from plain operands
  void forward(Exec& exec, View y, Grad mode, ConstView x, ConstView offsets, const ops::Call& call) override;
  void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, ConstView offsets, const ops::Call& call) override;

 protected:
  // gradients = or += dyᵀ x as the products are made; absent ones are left out.
  void accumulate_products(Exec& exec, std::span<const View> gradients, Grad mode, ConstView dy, ConstView x,
                           ConstView offsets, const ops::Call& call) const;
  // Of kinds that do no more than that.
  std::optional<GroupOperands> fp8_alone(bool gradients) const;

 private:
  // Asked every time: weights that live on the host are in different places of the device.
  std::vector<ConstView> matrices() const;

  std::vector<const Parameter*> parameters_;
  std::optional<ops::Fp8Settings> fp8_;
};

// The weights as what they are, where all are of one kind; empty elsewhere.
template <class Kind>
std::vector<Kind*> all_of(std::span<Weight* const> weights) {
  std::vector<Kind*> result;
  for (Weight* weight : weights) {
    auto* mine = dynamic_cast<Kind*>(weight);
    if (mine == nullptr) return {};
    result.push_back(mine);
  }
  return result;
}

// Trains as a whole, or not at all where the parameter does not.
class DenseKind final : public WeightKind {
 public:
  std::unique_ptr<Weight> make(Exec& exec, Parameter& parameter, const WeightMemory& memory) const override;
  std::string describe() const override { return "dense"; }
};

}  // namespace inlay::weights
