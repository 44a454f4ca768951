#pragma once

#include <memory>
#include <vector>

#include "weights/route.h"
#include "weights/subspace.h"

namespace inlay::weights {

// Basis `weights`: W = Σ uᵢ sᵢ vᵢᵀ; the directions with the largest s are frozen, the others train as U, s and V. Every
// checkpoint tensor of the matrix (q, k and v of their product) has a decomposition of its own. Rows of U and V are the
// directions. What trains are the offsets ΔU, Δs, ΔV from zero; gradients and changes are projected, so that they stay
// orthogonal to the frozen directions as far as the compute dtype goes, and in what is saved they are projected once
// more, exactly. W = W₀ + ΔUᵀ(s∘V) + U₀ᵀ(s∘ΔV + Δs∘V₀).
struct FactorLayout {
  struct PartRanks {
    std::int64_t free = 0, frozen = 0;  // together min(N, M) of the part

    // On a side of this width, being orthogonal to the frozen rows is lying in the span of the free ones (together they
    // span everything), and the span is the narrower way to say it: the frozen rows need not be stored.
    bool span_suffices(std::int64_t width) const { return free + frozen == width && free <= frozen; }
    bool operator==(const PartRanks&) const = default;
  };
  std::vector<PartRanks> parts;
  Route route = Route::dense;
  bool one_call = true;  // a step calls accumulate() once: the dense route then needs G in scratch only

  // For a matrix that belongs to one of many processes: only G can be summed up without the factors.
  FactorLayout for_one_owner() const {
    FactorLayout result = *this;
    result.route = Route::dense;
    result.one_call = false;
    return result;
  }
  bool operator==(const FactorLayout&) const = default;
};

class FactorSubspace final : public SubspaceWeight {
 public:
  FactorSubspace(Exec& exec, Parameter& dense, const FactorLayout& layout, BasisPlace place);

  bool multiplies_plainly() const override { return layout_.route != Route::factored; }
  void forward(Exec& exec, View y, Grad mode, ConstView x, const ops::Call& call = {}) override;
  void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const ops::Call& call = {}) override;
  void accumulate(Exec& exec, ConstView dy, ConstView x, const ops::Call& call = {}) override;
  void accumulate_lookup(Exec& exec, ConstView dout, const ops::TokenGroups& groups) override;
  // Of one layout, and not the factored route's.
  std::unique_ptr<WeightGroup> group(std::span<Weight* const> all) override;
  void for_each_own(const std::function<void(Parameter&)>& visit) override;
  void for_each_gradient(const std::function<void(Parameter&)>& visit) override;
  void project(Exec& exec, const Parameter& parameter, View rows, Projected what) override;
  void finish_gradients(Exec& exec) override;
  void update_value(Exec& exec) override;
  void add_change(Exec& exec, View rows, std::int64_t row) override;
  Leak leak(Exec& exec) override;

  // One side of a part: U's directions in the outputs, or V's in the inputs.
  struct Side {
    Side(Exec& exec, FactorSubspace& owner, const std::string& name, const FactorLayout::PartRanks& ranks,
         std::int64_t width, BasisPlace place, bool needs_frozen);
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;

    ConstView value(Exec& exec) const;  // start + offset, in scratch
    View exact(Exec& exec) const;       // stacked, in fp32 and the offset projected exactly; in scratch

    View stacked;       // the offset's rows, then the starting rows: [2·free, width], so that one product takes both
    View start;         // its second half
    Basis frozen;       // the frozen rows; absent where the span of the starting rows says the same
    Basis start_basis;  // the starting rows as a basis, and in fp32
    Projection projection;  // of the offset's rows
    Parameter offset;
  };
  struct PartFactors {
    Part part;
    std::unique_ptr<Side> u, v;
    View scale;              // s₀, fp32
    Parameter scale_offset;  // Δs
    Basis scaled_frozen;     // s ∘ the frozen rows of V; for the factored route alone
  };
  const std::vector<std::unique_ptr<PartFactors>>& parts() const { return parts_; }
  const FactorLayout& layout() const { return layout_; }

 private:
  friend class FactorGroup;
  // From NAME.PART.u, .v, .s and the frozen rows that it needs (osft/basis_store.h).
  void set_directions(Exec& exec, const StartTensors& tensors) override;
  void accumulate_direct(Exec& exec, PartFactors& f, ConstView dy, ConstView x, const float* device_alpha);
  void accumulate_from(Exec& exec, PartFactors& f, ConstView g);
  void accumulate_from(Exec& exec, ConstView g);  // of all parts, in any dtype

  FactorLayout layout_;
  std::vector<std::unique_ptr<PartFactors>> parts_;
  // Whether G = dyᵀx adds up in the matrix's gradient over the calls of a step, and the factors' gradients are made of
  // it at the end; otherwise every call makes them.
  bool collects_ = false;
  // Whether the factors are this process's. Where every matrix belongs to one process, the others send it what G they
  // have seen, and get W back.
  bool mine_ = true;
};

class FactorKind final : public WeightKind {
 public:
  FactorKind(FactorLayout layout, BasisPlace place) : layout_(std::move(layout)), place_(place) {}
  std::unique_ptr<Weight> make(Exec& exec, Parameter& parameter, const WeightMemory& memory) const override;
  bool made_on_arrival() const override { return true; }
  bool multiplies_value() const override { return layout_.route != Route::factored; }
  bool cuts_rows() const override { return false; }  // every direction reaches all of them
  std::string describe() const override {
    return fmt::format("{} free, {}", layout_.parts.front().free, name_of(layout_.route));
  }

 private:
  FactorLayout layout_;
  BasisPlace place_;
};

}  // namespace inlay::weights
