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
  bool operator==(const FactorLayout&) const = default;
};

class FactorSubspace final : public SubspaceWeight {
 public:
  FactorSubspace(Exec& exec, Parameter& dense, const FactorLayout& layout, BasisPlace place);

  ConstView matrix() const override { return layout_.route == Route::factored ? ConstView() : dense().value; }
  void forward(Exec& exec, View y, ConstView x) override;
  void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const float* device_alpha) override;
  void accumulate(Exec& exec, ConstView dy, ConstView x, const float* device_alpha) override;
  // accumulate() of weights of one layout, not the factored route's, that share rows, each its own
  // (backend/grouped_matmul.h).
  static void accumulate_group(Exec& exec, std::span<FactorSubspace* const> group, ConstView dy, ConstView x,
                               ConstView offsets);
  void accumulate_lookup(Exec& exec, ConstView dout, const ops::TokenGroups& groups) override;
  void for_each_factor(const std::function<void(Parameter&)>& visit) override;
  void finish_gradients(Exec& exec) override;
  void update_value(Exec& exec) override;
  void add_change(Exec& exec, View rows, std::int64_t row) override;
  double leak(Exec& exec) override;
  std::string describe() const override { return std::string(name_of(layout_.route)); }

  // One side of a part: U's directions in the outputs, or V's in the inputs.
  struct Side {
    Side(Exec& exec, const std::string& name, DType dtype, const FactorLayout::PartRanks& ranks, std::int64_t width,
         BasisPlace place, bool needs_frozen);
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
  std::vector<std::unique_ptr<PartFactors>>& parts() { return parts_; }
  const FactorLayout& layout() const { return layout_; }

 private:
  void accumulate_direct(Exec& exec, PartFactors& f, ConstView dy, ConstView x, const float* device_alpha);
  void accumulate_from(Exec& exec, PartFactors& f, ConstView g);
  void accumulate_from(Exec& exec, ConstView g);  // of all parts, in any dtype
  static void accumulate_group_direct(Exec& exec, std::span<FactorSubspace* const> group, std::size_t part,
                                      ConstView dy, ConstView x, ConstView offsets);

  FactorLayout layout_;
  std::vector<std::unique_ptr<PartFactors>> parts_;
  View dense_gradient_;  // G over the calls of a step, fp32; absent where there is one call
  bool dense_written_ = false;
};

}  // namespace inlay::weights
