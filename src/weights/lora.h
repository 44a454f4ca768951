#pragma once

#include <optional>
#include <vector>

#include "ops/dropout.h"
#include "weights/input_subspace.h"
#include "weights/kind.h"

namespace inlay::weights {

// Adapters of a matrix: W + s·B·A for some of its rows. A matrix of several checkpoint tensors (query, key and value;
// gate and up) has one for each, or one for all of them, or none for some; they share one product x·Aᵀ.
struct LoraPart {
  std::int64_t row = 0, rows = 0;  // of the matrix
  std::int64_t rank = 0;
  double scale = 1;  // s
};

struct LoraLayout {
  std::vector<LoraPart> parts;  // in the order of their rows, which do not overlap
  double dropout = 0;           // of the adapters' input; all parts share the mask
  std::uint64_t seed = 0;       // of the dropout
  bool dora = false;            // rows are scaled to magnitudes that train
  // Directions of the input that A keeps to: on the frozen ones the outputs stay those of the base, whatever is
  // learned.
  std::optional<InputLayout> inputs;
  BasisPlace place = BasisPlace::device;  // of these directions
  // B·A begins at the base's largest directions and they are taken out of it: W + s·(B·A − B₀·A₀). Nothing is rounded
  // into W; the products see [A; A₀] and [B, −B₀], and so does whoever loads what is saved.
  bool pissa = false;

  std::int64_t rank() const;  // of all parts together
  std::int64_t copies() const { return pissa ? 2 : 1; }
  bool same_extents(const LoraLayout& other) const;
};

// body(part's number, part, its first column among the ranks of all) for every part.
template <class Body>
void for_each_part(const LoraLayout& layout, const Body& body) {
  std::int64_t column = 0;
  for (std::size_t i = 0; i < layout.parts.size(); ++i) {
    body(i, layout.parts[i], column);
    column += layout.parts[i].rank;
  }
}

// body(part's number, part, columns begin and end of what the products see of it) for every part.
template <class Body>
void for_each_seen(const LoraLayout& layout, const Body& body) {
  for_each_part(layout, [&](std::size_t i, const LoraPart& part, std::int64_t column) {
    body(i, part, column * layout.copies(), (column + part.rank) * layout.copies());
  });
}

// body(rows begin and end of A, the first of the columns that the products see of them): all at once where nothing lies
// between.
template <class Body>
void for_each_stretch(const LoraLayout& layout, const Body& body) {
  if (layout.copies() == 1) return body(0, layout.rank(), 0);
  for_each_part(layout, [&](std::size_t, const LoraPart& part, std::int64_t column) {
    body(column, column + part.rank, column * layout.copies());
  });
}

// LoRA over any base that does not train itself. A [r, in] and B [rows, r] train; gradients of the base's matrix are
// never formed. The low-rank product is written first and the base's added to it, in its own pass over y.
class LoraWeight final : public Weight {
 public:
  LoraWeight(Exec& exec, Parameter& parameter, std::unique_ptr<Weight> base, const LoraLayout& layout,
             const WeightMemory& memory);

  bool trainable() const override { return training_; }
  void forward(Exec& exec, View y, Grad mode, ConstView x, const ops::Call& call = {}) override;
  void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const ops::Call& call = {}) override;
  void accumulate(Exec& exec, ConstView dy, ConstView x, const ops::Call& call = {}) override;
  void backward(Exec& exec, View dx, Grad mode, ConstView dy, ConstView x, const ops::Call& call = {}) override;
  void lookup(Exec& exec, View out, ConstView tokens) override;
  void accumulate_lookup(Exec& exec, ConstView dout, const ops::TokenGroups& groups) override;
  std::unique_ptr<WeightGroup> group(std::span<Weight* const> all) override;  // of one layout
  bool keeps_base() const override { return base_->keeps_base(); }
  ops::Linear& base() override { return base_->base(); }
  void for_each_own(const std::function<void(Parameter&)>& visit) override;

  void load(Exec& exec, const Part& part, PartSource* source) override { base_->load(exec, part, source); }
  // From NAME.lora_a, NAME.lora_b.PART and, of DoRA, NAME.lora_m.PART, in fp32; magnitudes that are not there are those
  // of the rows. With directions from NAME.frozen or NAME.free as well: A's rows keep their lengths, but turn to what
  // is free.
  void start(Exec& exec, const StartTensors* tensors) override;
  void begin_pass(const PassKey& pass) override;
  void arrived(Exec& exec) override { base_->arrived(exec); }
  void finish_gradients(Exec& exec) override;
  void project(Exec& exec, const Parameter& parameter, View rows, Projected what) override;
  void updated(Exec& exec) override;
  bool changes() const override { return true; }
  void complete(Exec& exec, View rows, std::int64_t row) override;
  void read_rows(Exec& exec, View rows, std::int64_t row) override;
  AdapterNumbers read_adapter(Exec& exec, std::size_t part) override;
  Leak leak(Exec& exec) override;

 private:
  friend class LoraGroup;

  // Rows of A in fp32, with nothing but what is allowed. As at OSFT's changes: a step projects in the compute dtype,
  // and what adds up is projected exactly whenever it counts.
  ConstView exact_a(Exec& exec, std::int64_t row, std::int64_t end) const;
  void turn_to_free(Exec& exec, const StartTensors& tensors);
  // PiSSA: the base's largest directions, and the copies of them that stay.
  void start_at_largest(Exec& exec);
  void refresh(Exec& exec);
  void add_start(Exec& exec, std::size_t part, AdapterNumbers& numbers) const;
  // What the products see of A and B, [copies · rank] wide.
  ConstView seen_a() const { return layout_.pissa ? both_a_ : a_.value; }
  ConstView seen_b(std::size_t part) const { return layout_.pissa ? both_b_[part] : b_[part].value; }

  bool covers_all_rows() const;
  // The adapters' input: x itself, or with dropout a copy in scratch.
  ConstView dropped(Exec& exec, ConstView x, const ops::Call& call) const;
  ops::Dropout mask(const ops::Call& call) const;
  // x·Aᵀ, and s·dy·B beside each other, in scratch.
  View project_input(Exec& exec, ConstView x) const;
  View project_output(Exec& exec, ConstView dy) const;
  // The ways back, with dy as it is before the rows' factors and what project_output() makes of it.
  void add_gradients(Exec& exec, ConstView dz, ConstView inner, ConstView x, const ops::Call& call);
  void add_magnitudes(Exec& exec, ConstView dy, ConstView x, const ops::Call& call);
  void multiply_back(Exec& exec, View dx, Grad mode, ConstView dz, ConstView inner, const ops::Call& call);
  // y = or += x·(W + s·B·A)ᵀ
  void multiply(Exec& exec, View y, Grad mode, ConstView x, const ops::Call& call);
  // rows hold the base's and become what the layers multiply by.
  void finish_rows(Exec& exec, View rows, std::int64_t row);
  // rows += s·B·A
  void add_change(Exec& exec, View rows, std::int64_t row);
  // DoRA: dy as it is before the rows' factors, in scratch; without, dy itself.
  ConstView before_factors(Exec& exec, ConstView dy) const;
  // DoRA, where the rows have changed: their norms, and with them the factors.
  void measure_rows(Exec& exec);
  void set_factors(Exec& exec);

  LoraLayout layout_;
  std::unique_ptr<Weight> base_;
  Parameter a_;               // [ranks of all parts, in]
  std::vector<Parameter> b_;  // of every part, [rows, rank]
  Basis basis_;               // of layout_.inputs
  Projection allowed_;        // of A's rows
  // PiSSA, in the compute dtype: of every part A and A₀ below each other, and B and −B₀ side by side.
  View both_a_;
  std::vector<View> both_b_;
  // DoRA: row i of W + s·B·A is multiplied by magnitude / norm, as if the norm were a constant; of every part, fp32.
  std::vector<Parameter> magnitude_;
  std::vector<View> norms_, factors_;
  bool training_ = false;
  bool off_ = false;        // in this pass it is the base alone
  bool drops_ = false;      // in this pass
  std::uint64_t site_ = 0;  // the dropout's randomness in it
};

class LoraKind final : public WeightKind {
 public:
  // base: of what the matrix itself is; it must not train.
  LoraKind(LoraLayout layout, std::shared_ptr<const WeightKind> base)
      : layout_(std::move(layout)), base_(std::move(base)) {}
  std::unique_ptr<Weight> make(Exec& exec, Parameter& parameter, const WeightMemory& memory) const override;
  std::string describe() const override;
  bool may_live_on_host() const override { return !layout_.dora && !layout_.pissa && base_->may_live_on_host(); }
  bool multiplies_value() const override { return base_->multiplies_value(); }

 private:
  LoraLayout layout_;
  std::shared_ptr<const WeightKind> base_;
};

}  // namespace inlay::weights
