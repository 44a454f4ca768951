#pragma once

#include "weights/subspace.h"

namespace inlay::weights {

// Basis `activations`: what must not change is the output on inputs that the base model has seen. Their energy lies in
// `frozen` directions of the input; the others train. Nothing can drift: with H the frozen directions and V the free
// ones, the change is B·V with B [N, r] from zero, or D·(1 − HᵀH) with D [N, M], whichever of V and H is narrower. D's
// own changes are projected in every step, so that W₀ + D is W as well as the compute dtype can tell.
struct InputLayout {
  std::int64_t free = 0, frozen = 0;  // together M
  // The matrix is looked up by token as well (a tied embedding), where its input is a single one: the rows of tokens
  // that carry energy there do not change at all.
  bool masks_rows = false;

  // H is stored, and the change itself trains, where it has fewer rows than V.
  bool stores_frozen() const { return frozen < free; }
  std::int64_t stored() const { return stores_frozen() ? frozen : free; }
  // What the rows of a change keep to, given the basis that is stored.
  Projection allowed(const Basis& basis) const {
    return {&basis, stores_frozen() ? Projection::Onto::complement : Projection::Onto::span};
  }
  // The stored basis among tensors.
  std::string basis_name(const std::string& parameter) const {
    return parameter + (stores_frozen() ? ".frozen" : ".free");
  }
  bool operator==(const InputLayout&) const = default;
};

class InputSubspace final : public SubspaceWeight {
 public:
  InputSubspace(Exec& exec, Parameter& dense, const InputLayout& layout, BasisPlace place);

  void accumulate(Exec& exec, ConstView dy, ConstView x, const ops::Call& call = {}) override;
  void accumulate_lookup(Exec& exec, ConstView dout, const ops::TokenGroups& groups) override;
  std::unique_ptr<WeightGroup> group(std::span<Weight* const> all) override;  // of one layout
  void for_each_own(const std::function<void(Parameter&)>& visit) override { visit(factor_); }
  void project(Exec& exec, const Parameter& parameter, View rows, Projected what) override;
  void update_value(Exec& exec) override;
  void add_change(Exec& exec, View rows, std::int64_t row) override;
  Leak leak(Exec& exec) override;

  // In the narrow form of the change, the gradient is found from the input's coefficients, hence from its rows.
  std::optional<ops::Fp8Operands> fp8() const override;

  const InputLayout& layout() const { return layout_; }

 private:
  friend class InputGroup;
  // From NAME.frozen or NAME.free, whichever is stored, and tokens.free.
  void set_directions(Exec& exec, const StartTensors& tensors) override;

  InputLayout layout_;
  std::optional<Fp8Products> basis_products_;  // of V, where products are made in fp8; not of experts
  Basis basis_;                                // rows [stored, M]: V, or H where that is the narrower
  Projection allowed_;                         // of the change's rows
  View row_mask_;     // fp32 [N], 1 for rows that train and 0 for others; absent where the layout has none
  Parameter factor_;  // B or D
};

class InputKind final : public WeightKind {
 public:
  InputKind(const InputLayout& layout, BasisPlace place) : layout_(layout), place_(place) {}
  std::unique_ptr<Weight> make(Exec& exec, Parameter& parameter, const WeightMemory& memory) const override;
  bool made_on_arrival() const override { return true; }
  std::string describe() const override {
    return fmt::format("{} free, {}", layout_.free, layout_.stores_frozen() ? "D" : "B·V");
  }

 private:
  InputLayout layout_;
  BasisPlace place_;
};

}  // namespace inlay::weights
