#include "weights/factor_subspace.h"

#include <algorithm>

#include "backend/grouped_matmul.h"
#include "ops/adamw.h"
#include "ops/elementwise.h"

namespace inlay::weights {

using backend::grouped_matmul;
using backend::grouped_matmul_over_rows;
using backend::matmul;
using backend::MatmulScale;
using backend::ScratchScope;
using enum backend::Transpose;

namespace {

// The columns of dy that belong to a part's outputs.
ConstView columns_of(ConstView dy, const Part& part) { return dy.slice_cols(part.row, part.row + part.rows); }

// A factor belongs to whom the matrix does: the others have no rows of it.
void set_owner(Parameter& factor, const Parameter& matrix, bool mine) {
  if (matrix.cut == nullptr) return;
  factor.cut = std::make_shared<parallel::RowCut>(
      parallel::RowCut::whole(factor.rows(), matrix.cut->ranks(), matrix.cut->owner_of(0)));
  factor.rank = matrix.rank;
  factor.first_copy = matrix.first_copy;
  factor.holds_value = factor.holds_grad = !mine;
}

// s = s₀ + Δs, fp32, in scratch.
View current_scale(Exec& exec, const FactorSubspace::PartFactors& f) {
  View scale = exec.arena().scratch("scales", DType::f32, f.scale.shape());
  ops::cast(exec, scale, f.scale);
  ops::add(exec, scale, f.scale_offset.value);
  return scale;
}

}  // namespace

FactorSubspace::Side::Side(Exec& exec, FactorSubspace& owner, const std::string& name,
                           const FactorLayout::PartRanks& ranks, std::int64_t width, BasisPlace place,
                           bool needs_frozen) {
  Arena& arena = exec.arena();
  const DType dtype = owner.parameter().value.dtype();
  offset.name = name;
  offset.layer = owner.parameter().layer;
  offset.shape = {ranks.free, width};
  offset.owner = &owner;
  offset.projected = true;
  set_owner(offset, owner.parameter(), owner.mine_);
  if (!owner.mine_) {
    allocate_value(exec, offset, dtype);
    allocate_training_state(exec, offset);
    return;
  }
  stacked = arena.keep(MemoryClass::weights, name, dtype, {2 * ranks.free, width});
  exec.fill_zero(stacked);
  start = stacked.slice_rows(ranks.free, 2 * ranks.free);
  start_basis = Basis(exec, name + ".start", start);
  const bool span = ranks.span_suffices(width);
  if (!span || needs_frozen) {
    frozen = Basis(exec, name + ".frozen", dtype, {ranks.frozen, width}, place,
                   span ? BasisPrecision::rounded : BasisPrecision::exact);
  }
  projection =
      span ? Projection(&start_basis, Projection::Onto::span) : Projection(&frozen, Projection::Onto::complement);
  offset.value = stacked.slice_rows(0, ranks.free);
  allocate_training_state(exec, offset);
  if (!offset.low.absent()) exec.fill_zero(offset.low);
}

ConstView FactorSubspace::Side::value(Exec& exec) const {
  View result = exec.arena().scratch("factor", start.dtype(), start.shape());
  ops::add_offset(exec, result, start, master_parts(offset));
  return result;
}

View FactorSubspace::Side::exact(Exec& exec) const {
  const std::int64_t free = start.dim(0);
  View result = exec.arena().scratch("fp32 factor", DType::f32, stacked.shape());
  const View moved = result.slice_rows(0, free);
  const ScratchScope scope(exec.arena());
  ops::cast(exec, result.slice_rows(free, 2 * free), start_basis.exact_rows(exec));
  ops::cast(exec, moved, master_of(exec, offset));
  projection.apply_exactly(exec, moved);
  return result;
}

FactorSubspace::FactorSubspace(Exec& exec, Parameter& dense, const FactorLayout& layout, BasisPlace place)
    : SubspaceWeight(exec, dense, layout.route != Route::factored || dense.cut != nullptr),
      layout_(dense.cut != nullptr ? layout.for_one_owner() : layout),
      collects_(layout_.route == Route::dense && !layout_.one_call),
      mine_(dense.cut == nullptr || dense.cut->owner_of(0) == dense.rank) {
  INLAY_ASSERT(layout.parts.size() == dense.parts.size(), "{} has {} parts, the layout {}", dense.name,
               dense.parts.size(), layout.parts.size());
  const DType compute = dense.value.dtype();
  const bool factored = layout_.route == Route::factored;
  for (std::size_t i = 0; i < dense.parts.size(); ++i) {
    const FactorLayout::PartRanks& ranks = layout.parts[i];
    auto f = std::make_unique<PartFactors>();
    f->part = dense.parts[i];
    const std::string name = fmt::format("{}.{}", dense.name, i);
    f->u = std::make_unique<Side>(exec, *this, name + ".u", ranks, f->part.rows, place, factored);
    f->v = std::make_unique<Side>(exec, *this, name + ".v", ranks, dense.shape[1], place, false);
    if (mine_) {
      f->scale = exec.arena().keep(MemoryClass::weights, name + ".s", DType::f32, {ranks.free});
      exec.fill_zero(f->scale);
    }
    Parameter& scale_offset = f->scale_offset;
    scale_offset.name = name + ".s";
    scale_offset.layer = dense.layer;
    scale_offset.owner = this;
    scale_offset.shape = {ranks.free};
    set_owner(scale_offset, dense, mine_);
    allocate_value(exec, scale_offset, DType::f32);
    allocate_training_state(exec, scale_offset);
    exec.fill_zero(scale_offset.my_value());
    if (factored) {
      f->scaled_frozen =
          Basis(exec, name + ".scaled", compute, {ranks.frozen, dense.shape[1]}, place, BasisPrecision::rounded);
    }
    parts_.push_back(std::move(f));
  }
  if (collects_) allocate_gradient(exec, dense, ".dense_grad");
}

void FactorSubspace::set_directions(Exec& exec, const StartTensors& tensors) {
  if (!mine_) return;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    PartFactors& f = *parts_[i];
    const std::string prefix = fmt::format("{}.{}", parameter().name, i);
    set_basis(exec, f.u->start_basis, tensors, prefix + ".u");
    set_basis(exec, f.v->start_basis, tensors, prefix + ".v");
    exec.upload(f.scale, tensors.at(prefix + ".s", DType::f32, f.scale.shape()));
    set_basis(exec, f.u->frozen, tensors, prefix + ".u.frozen");
    set_basis(exec, f.v->frozen, tensors, prefix + ".v.frozen");
    set_basis(exec, f.scaled_frozen, tensors, prefix + ".v.scaled");
  }
}

void FactorSubspace::project(Exec& exec, const Parameter& offset, View rows, Projected what) {
  for (const auto& f : parts_) {
    for (const Side* side : {f->u.get(), f->v.get()}) {
      if (&side->offset == &offset) return side->projection.apply(exec, rows, what);
    }
  }
}

void FactorSubspace::for_each_own(const std::function<void(Parameter&)>& visit) {
  for (const auto& f : parts_) {
    visit(f->u->offset);
    visit(f->scale_offset);
    visit(f->v->offset);
  }
}

void FactorSubspace::for_each_gradient(const std::function<void(Parameter&)>& visit) {
  if (collects_) return visit(parameter());
  for_each_own(visit);
}

// y = (x·(s∘V_h)ᵀ)·U_h + (x·(s∘V)ᵀ)·U, the second product added to the first.
void FactorSubspace::forward(Exec& exec, View y, Grad mode, ConstView x, const ops::Call& call) {
  if (layout_.route != Route::factored) return SubspaceWeight::forward(exec, y, mode, x, call);
  Arena& arena = exec.arena();
  for (const auto& f : parts_) {
    const ScratchScope scope(arena);
    const View out = y.slice_cols(f->part.row, f->part.row + f->part.rows);
    const bool any_frozen = !f->scaled_frozen.absent();
    if (any_frozen) {
      const ScratchScope frozen_scope(arena);
      const ConstView frozen = f->scaled_frozen.rows(exec);
      View inner = arena.scratch("inner", x.dtype(), {x.dim(0), frozen.dim(0)});
      matmul(exec, inner, x, no, frozen, yes);
      matmul(exec, out, inner, no, f->u->frozen.rows(exec), no, {.beta = beta_of(mode)});
    }
    const std::int64_t free = f->scale.dim(0);
    View right = arena.scratch("scaled factor", x.dtype(), {2 * free, x.dim(1)});
    ops::change_rows(exec, right.slice_rows(0, free), right.slice_rows(free, 2 * free),
                     {f->v->start, master_parts(f->v->offset), f->scale, f->scale_offset.value});
    View inner = arena.scratch("inner", x.dtype(), {x.dim(0), free});
    matmul(exec, inner, x, no, right.slice_rows(0, free), yes);
    matmul(exec, out, inner, no, f->u->value(exec), no, {.beta = any_frozen ? 1.0f : beta_of(mode)});
  }
}

void FactorSubspace::backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const ops::Call& call) {
  if (layout_.route != Route::factored) return SubspaceWeight::backward_input(exec, dx, mode, dy, call);
  if (mode == Grad::skip) return;
  Arena& arena = exec.arena();
  const auto add_through = [&](ConstView dout, ConstView u, ConstView scaled_v) {
    View inner = arena.scratch("inner", dy.dtype(), {dy.dim(0), u.dim(0)});
    matmul(exec, inner, dout, no, u, yes);
    matmul(exec, dx, inner, no, scaled_v, no, {.beta = beta_of(mode), .device_alpha = call.device_alpha});
    mode = Grad::accumulate;
  };
  for (const auto& f : parts_) {
    const ConstView dout = columns_of(dy, f->part);
    if (!f->scaled_frozen.absent()) {
      const ScratchScope scope(arena);
      add_through(dout, f->u->frozen.rows(exec), f->scaled_frozen.rows(exec));
    }
    const ScratchScope scope(arena);
    const std::int64_t free = f->scale.dim(0);
    View right = arena.scratch("scaled factor", dy.dtype(), {2 * free, dx.dim(1)});
    ops::change_rows(exec, right.slice_rows(0, free), right.slice_rows(free, 2 * free),
                     {f->v->start, master_parts(f->v->offset), f->scale, f->scale_offset.value});
    add_through(dout, f->u->value(exec), right.slice_rows(0, free));
  }
}

// Both routes leave V·Gᵀ in U's gradient and U·G in V's, not yet scaled by s.
void FactorSubspace::accumulate(Exec& exec, ConstView dy, ConstView x, const ops::Call& call) {
  if (layout_.route != Route::dense) {
    for (const auto& f : parts_) accumulate_direct(exec, *f, columns_of(dy, f->part), x, call.device_alpha);
    return;
  }
  if (collects_) {
    const Grad mode = parameter().next_grad_mode();
    return multiply_over_rows(exec, parameter(), parameter().grad, mode, dy, x, call);
  }
  const ScratchScope scope(exec.arena());
  View g = exec.arena().scratch("dense gradient", x.dtype(), parameter().shape);
  multiply_over_rows(exec, parameter(), g, Grad::overwrite, dy, x, call);
  accumulate_from(exec, g);
}

void FactorSubspace::accumulate_direct(Exec& exec, PartFactors& f, ConstView dy, ConstView x,
                                       const float* device_alpha) {
  Arena& arena = exec.arena();
  const auto add = [&](Side& to, ConstView dy_or_x, const Side& through, ConstView x_or_dy) {
    const ScratchScope scope(arena);
    View inner = arena.scratch("inner", x.dtype(), {x.dim(0), f.scale.dim(0)});
    matmul(exec, inner, x_or_dy, no, through.value(exec), yes);
    const Grad mode = to.offset.next_grad_mode();
    matmul(exec, to.offset.grad, inner, yes, dy_or_x, no, {.beta = beta_of(mode), .device_alpha = device_alpha});
  };
  add(*f.u, dy, *f.v, x);
  add(*f.v, x, *f.u, dy);
}

void FactorSubspace::accumulate_from(Exec& exec, PartFactors& f, ConstView g) {
  const ScratchScope scope(exec.arena());
  const Grad u_mode = f.u->offset.next_grad_mode(), v_mode = f.v->offset.next_grad_mode();
  matmul(exec, f.u->offset.grad, f.v->value(exec), no, g, yes, {.beta = beta_of(u_mode)});
  matmul(exec, f.v->offset.grad, f.u->value(exec), no, g, no, {.beta = beta_of(v_mode)});
}

void FactorSubspace::accumulate_from(Exec& exec, ConstView g) {
  const ScratchScope scope(exec.arena());
  ConstView rounded = g;
  if (parameter().value.dtype() != g.dtype()) {
    View cast = exec.arena().scratch("dense gradient", parameter().value.dtype(), parameter().shape);
    ops::cast(exec, cast, g);
    rounded = cast;
  }
  for (const auto& f : parts_) accumulate_from(exec, *f, rounded.slice_rows(f->part.row, f->part.row + f->part.rows));
}

class FactorGroup final : public DenseProducts {
 public:
  explicit FactorGroup(std::vector<FactorSubspace*> all)
      : DenseProducts(std::vector<Weight*>(all.begin(), all.end())), all_(std::move(all)) {}

  void accumulate(Exec& exec, ConstView dy, ConstView x, ConstView offsets, const ops::Call& call) override {
    const FactorLayout& layout = all_.front()->layout_;
    if (layout.route == Route::direct) {
      for (std::size_t part = 0; part < layout.parts.size(); ++part) accumulate_direct(exec, part, dy, x, offsets);
      return;
    }
    const ScratchScope scope(exec.arena());
    std::vector<View> gradients;
    Grad mode = Grad::overwrite;
    for (FactorSubspace* weight : all_) {
      if (layout.one_call) {
        gradients.push_back(exec.arena().scratch("dense gradients", DType::f32, weight->parameter().shape));
        continue;
      }
      gradients.push_back(weight->parameter().grad);
      mode = weight->parameter().next_grad_mode();
    }
    accumulate_products(exec, gradients, mode, dy, x, offsets, call);
    for (std::size_t g = 0; layout.one_call && g < all_.size(); ++g) all_[g]->accumulate_from(exec, gradients[g]);
  }
  // The direct route reads the rows themselves.
  std::optional<GroupOperands> fp8() const override {
    return all_.front()->layout_.route == Route::dense ? fp8_alone(true) : DenseProducts::fp8();
  }

 private:
  using PartFactors = FactorSubspace::PartFactors;
  using SideOfPart = std::unique_ptr<FactorSubspace::Side> PartFactors::*;

  void accumulate_direct(Exec& exec, std::size_t part, ConstView dy, ConstView x, ConstView offsets) {
    const auto factors = [&](FactorSubspace* weight) -> PartFactors& { return *weight->parts_[part]; };
    const ConstView dout = columns_of(dy, factors(all_.front()).part);
    const auto add = [&](SideOfPart to, SideOfPart through, ConstView dy_or_x, ConstView x_or_dy) {
      const ScratchScope scope(exec.arena());
      std::vector<ConstView> directions;
      std::vector<View> gradients;
      Grad mode = Grad::skip;
      for (FactorSubspace* weight : all_) {
        PartFactors& f = factors(weight);
        directions.push_back((f.*through)->value(exec));
        gradients.push_back((f.*to)->offset.grad);
        mode = (f.*to)->offset.next_grad_mode();
      }
      View inner = exec.arena().scratch("inner", x.dtype(), {x.dim(0), directions.front().dim(0)});
      grouped_matmul(exec, inner, x_or_dy, directions, yes, offsets);
      grouped_matmul_over_rows(exec, gradients, mode, inner, dy_or_x, offsets);
    };
    add(&PartFactors::u, &PartFactors::v, dout, x);
    add(&PartFactors::v, &PartFactors::u, x, dout);
  }

  std::vector<FactorSubspace*> all_;
};

std::unique_ptr<WeightGroup> FactorSubspace::group(std::span<Weight* const> all) {
  auto factors = all_of<FactorSubspace>(all);
  const auto differs = [&](const FactorSubspace* weight) { return weight->layout_ != layout_; };
  if (factors.empty() || layout_.route == Route::factored) return nullptr;
  if (std::any_of(factors.begin(), factors.end(), differs)) return nullptr;
  return std::make_unique<FactorGroup>(std::move(factors));
}

void FactorSubspace::accumulate_lookup(Exec&, ConstView, const ops::TokenGroups&) {
  INLAY_ASSERT(false, "{}: an embedding has no factors", parameter().name);
}

void FactorSubspace::finish_gradients(Exec& exec) {
  Arena& arena = exec.arena();
  const bool collected = collects_ && parameter().grad_written();
  parameter().forget_grad();
  if (!mine_) return;
  if (collected) accumulate_from(exec, parameter().my_grad());
  for (const auto& f : parts_) {
    const ScratchScope scope(arena);
    f->u->offset.ensure_grad(exec);
    f->v->offset.ensure_grad(exec);
    f->scale_offset.next_grad_mode();  // written here, once
    ops::row_dot(exec, f->scale_offset.grad, f->u->value(exec), f->u->offset.grad);
    const View scale = current_scale(exec, *f);
    ops::scale_rows(exec, f->u->offset.grad, scale);
    ops::scale_rows(exec, f->v->offset.grad, scale);
  }
}

void FactorSubspace::update_value(Exec& exec) {
  if (layout_.route == Route::factored || !mine_) return;
  Arena& arena = exec.arena();
  restart(exec);
  for (const auto& f : parts_) {
    const ScratchScope scope(arena);
    const std::int64_t free = f->scale.dim(0);
    View right = arena.scratch("change factor", parameter().value.dtype(), {2 * free, in_features()});
    ops::change_rows(exec, right.slice_rows(0, free), right.slice_rows(free, 2 * free),
                     {f->v->start, master_parts(f->v->offset), f->scale, f->scale_offset.value});
    const View rows = changing_value().slice_rows(f->part.row, f->part.row + f->part.rows);
    matmul(exec, rows, f->u->stacked, yes, right, no, {.beta = 1.0f});  // +=, rounded once
  }
}

void FactorSubspace::add_change(Exec& exec, View rows, std::int64_t row) {
  Arena& arena = exec.arena();
  for (const auto& f : parts_) {
    const std::int64_t begin = std::max(row, f->part.row);
    const std::int64_t end = std::min(row + rows.dim(0), f->part.row + f->part.rows);
    if (begin >= end) continue;
    const ScratchScope scope(arena);
    const std::int64_t free = f->scale.dim(0);
    const View left = f->u->exact(exec), v = f->v->exact(exec);
    View right = arena.scratch("change factor", DType::f32, v.shape());
    ops::change_rows(exec, right.slice_rows(0, free), right.slice_rows(free, 2 * free),
                     {v.slice_rows(free, 2 * free), {v.slice_rows(0, free), {}}, f->scale, f->scale_offset.value});
    const View into = rows.slice_rows(begin - row, end - row);
    matmul(exec, into, left.slice_cols(begin - f->part.row, end - f->part.row), yes, right, no, {.beta = 1.0f});
  }
}

std::unique_ptr<Weight> FactorKind::make(Exec& exec, Parameter& parameter, const WeightMemory& memory) const {
  INLAY_ASSERT(memory.training, "{} has directions, but does not train", parameter.name);
  allocate_value(exec, parameter, memory.compute);
  return std::make_unique<FactorSubspace>(exec, parameter, layout_, place_);
}

Leak FactorSubspace::leak(Exec& exec) {
  if (!mine_) return {};
  Arena& arena = exec.arena();
  double most = 0;
  for (const auto& f : parts_) {
    const ScratchScope scope(arena);
    View sums = arena.scratch("leak", DType::f64, {3});
    View change = arena.scratch("change", DType::f32, {f->part.rows, in_features()});
    exec.fill_zero(change);
    add_change(exec, change, f->part.row);
    ops::sum_of_squares(exec, sums, 0, change);
    f->u->projection.square_outside(exec, sums, 1, change, Projection::Along::columns);
    f->v->projection.square_outside(exec, sums, 2, change, Projection::Along::rows);
    for (const std::int64_t side : {1, 2}) {
      const double share =
          Leak{.outside = total_of(exec, sums.slice_rows(side, side + 1)), .all = total_of(exec, sums.slice_rows(0, 1))}
              .share();
      if (!(share <= most)) most = share;  // NaN stays
    }
  }
  return {.outside = most * most, .all = 1};
}

}  // namespace inlay::weights
