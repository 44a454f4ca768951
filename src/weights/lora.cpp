#include "weights/lora.h"

#include <algorithm>
#include <numeric>

#include "backend/matmul.h"
#include "ops/columns.h"
#include "ops/elementwise.h"
#include "weights/dense.h"
#include "weights/masters.h"

namespace inlay::weights {

using backend::matmul;
using backend::ScratchScope;
using enum backend::Transpose;

namespace {

// In fp32, in scratch.
ConstView widened(Exec& exec, ConstView view) {
  View wide = exec.arena().scratch("adapter", DType::f32, view.shape());
  ops::cast(exec, wide, view);
  return wide;
}

Parameter make_own(Exec& exec, Weight& owner, const std::string& name, DType dtype, Shape shape, bool trains) {
  Parameter own;
  own.name = name;
  own.role = owner.parameter().role;
  own.layer = owner.parameter().layer;
  own.expert = owner.parameter().expert;
  own.shape = shape;
  own.owner = &owner;
  own.trainable = trains;
  allocate_value(exec, own, dtype);
  if (trains) allocate_training_state(exec, own);
  return own;
}

}  // namespace

std::int64_t LoraLayout::rank() const {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0},
                         [](std::int64_t sum, const LoraPart& part) { return sum + part.rank; });
}

bool LoraLayout::same_extents(const LoraLayout& other) const {
  return std::equal(parts.begin(), parts.end(), other.parts.begin(), other.parts.end(),
                    [](const LoraPart& x, const LoraPart& y) {
                      return x.row == y.row && x.rows == y.rows && x.rank == y.rank && x.scale == y.scale;
                    }) &&
         pissa == other.pissa;
}

LoraWeight::LoraWeight(Exec& exec, Parameter& parameter, std::unique_ptr<Weight> base, const LoraLayout& layout,
                       const WeightMemory& memory)
    : Weight(parameter), layout_(layout), base_(std::move(base)), training_(memory.training) {
  const std::int64_t in = parameter.shape[1];
  const auto own = [&](const std::string& suffix, DType dtype, Shape shape) {
    return make_own(exec, *this, parameter.name + suffix, dtype, shape, training_);
  };
  a_ = own(".lora_a", memory.compute, {layout.rank(), in});
  if (layout_.inputs) {
    basis_ = Basis(exec, parameter.name + ".basis", memory.compute, {layout_.inputs->stored(), in}, layout_.place);
    allowed_ = layout_.inputs->allowed(basis_);
    a_.projected = true;
  }
  const auto keep = [&](const std::string& suffix, DType dtype, Shape shape) {
    return exec.arena().keep(MemoryClass::weights, parameter.name + suffix, dtype, shape);
  };
  if (layout_.pissa) both_a_ = keep(".lora_a.both", memory.compute, {2 * layout.rank(), in});
  b_.reserve(layout.parts.size());
  magnitude_.reserve(layout.parts.size());
  for (std::size_t i = 0; i < layout_.parts.size(); ++i) {
    const LoraPart& part = layout_.parts[i];
    b_.push_back(own(fmt::format(".lora_b.{}", i), memory.compute, {part.rows, part.rank}));
    if (layout_.pissa) both_b_.push_back(keep(".lora_b.both", memory.compute, {part.rows, 2 * part.rank}));
    if (!layout_.dora) continue;
    magnitude_.push_back(own(fmt::format(".lora_m.{}", i), DType::f32, {part.rows}));
    for (std::vector<View>* views : {&norms_, &factors_}) {
      views->push_back(keep(".row_norms", DType::f32, {part.rows}));
    }
  }
}

void LoraWeight::for_each_own(const std::function<void(Parameter&)>& visit) {
  visit(a_);
  for (Parameter& b : b_) visit(b);
  for (Parameter& magnitude : magnitude_) visit(magnitude);
}

void LoraWeight::start(Exec& exec, const StartTensors* tensors) {
  base_->start(exec, tensors);
  INLAY_ASSERT(tensors != nullptr, "{} has no adapter to start from", parameter().name);
  const auto set = [&](Parameter& own) { set_master(exec, own, tensors->at(own.name, DType::f32, own.shape)); };
  if (layout_.pissa) {
    start_at_largest(exec);
  } else {
    set(a_);
    if (layout_.inputs) turn_to_free(exec, *tensors);
    for (Parameter& b : b_) set(b);
  }
  if (!layout_.dora) return;
  measure_rows(exec);
  for (std::size_t i = 0; i < magnitude_.size(); ++i) {
    Parameter& magnitude = magnitude_[i];
    if (tensors->has(magnitude.name)) {
      set(magnitude);
    } else {
      ops::cast(exec, magnitude.value, norms_[i]);
    }
  }
  set_factors(exec);
}

void LoraWeight::project(Exec& exec, const Parameter&, View rows, Projected what) { allowed_.apply(exec, rows, what); }

ConstView LoraWeight::exact_a(Exec& exec, std::int64_t row, std::int64_t end) const {
  const ConstView master = master_of(exec, a_, row, end);
  if (!layout_.inputs) return master;
  View exact = exec.arena().scratch("adapter in free directions", DType::f32, master.shape());
  ops::cast(exec, exact, master);
  allowed_.apply_exactly(exec, exact);
  return exact;
}

Leak LoraWeight::leak(Exec& exec) {
  if (!layout_.inputs) return {};
  return leak_of(exec, allowed_, parameter(), [&](View rows, std::int64_t row) { add_change(exec, rows, row); });
}

void LoraWeight::set_factors(Exec& exec) {
  for (std::size_t i = 0; i < factors_.size(); ++i) {
    ops::quotients(exec, factors_[i], magnitude_[i].value, norms_[i]);
  }
}

// The norms are those of what the layers multiply by; a constant to the gradient, as DoRA has it.
void LoraWeight::measure_rows(Exec& exec) {
  constexpr std::int64_t piece_elements = std::int64_t{8} << 20;  // of the matrix at once
  const std::int64_t step = std::max<std::int64_t>(1, piece_elements / in_features());
  for (std::size_t i = 0; i < layout_.parts.size(); ++i) {
    const LoraPart& part = layout_.parts[i];
    for (std::int64_t row = 0; row < part.rows; row += step) {
      const ScratchScope scope(exec.arena());
      const std::int64_t end = std::min(row + step, part.rows);
      View rows = exec.arena().scratch("adapted rows", DType::f32, {end - row, in_features()});
      base_->read_rows(exec, rows, part.row + row);
      add_change(exec, rows, part.row + row);
      ops::row_norms(exec, norms_[i].slice(0, row, end), rows);
    }
  }
}

void LoraWeight::updated(Exec& exec) {
  base_->updated(exec);
  if (layout_.pissa) refresh(exec);
  if (!layout_.dora) return;
  measure_rows(exec);
  set_factors(exec);
}

void LoraWeight::finish_gradients(Exec& exec) {
  for (std::size_t i = 0; i < magnitude_.size(); ++i) {
    magnitude_[i].ensure_grad(exec);
    ops::quotients(exec, magnitude_[i].grad, magnitude_[i].grad, norms_[i]);
  }
}

void LoraWeight::begin_pass(const PassKey& pass) {
  base_->begin_pass(pass);
  off_ = pass.base;
  drops_ = pass.training && layout_.dropout > 0;
  // Every matrix of every pass has its own numbers: of steps, micro-batches, layers, experts and roles there are fewer
  // than 2²⁴, 2¹², 2¹², 2¹² and 2⁴ before anything repeats.
  const Parameter& p = parameter();
  const auto layer = static_cast<std::uint64_t>(p.layer + 1), expert = static_cast<std::uint64_t>(p.expert + 1);
  site_ = (pass.step << 40) | (pass.micro_batch % 4096 << 28) | (layer % 4096 << 16) | (expert % 4096 << 4) |
          static_cast<std::uint64_t>(p.role);
}

bool LoraWeight::covers_all_rows() const {
  std::int64_t rows = 0;
  for (const LoraPart& part : layout_.parts) rows += part.rows;
  return rows == out_features();
}

ops::Dropout LoraWeight::mask(const ops::Call& call) const {
  return {.p = static_cast<float>(layout_.dropout),
          .seed = layout_.seed,
          .site = site_,
          .first_row = call.first_row,
          .rows = call.rows};
}

ConstView LoraWeight::dropped(Exec& exec, ConstView x, const ops::Call& call) const {
  if (!drops_) return x;
  View copy = exec.arena().scratch("adapter input", x.dtype(), x.shape());
  ops::dropout(exec, copy, Grad::overwrite, x, mask(call));
  return copy;
}

ConstView LoraWeight::before_factors(Exec& exec, ConstView dy) const {
  if (!layout_.dora) return dy;
  View result = exec.arena().scratch("gradient before the rows' factors", dy.dtype(), dy.shape());
  if (!covers_all_rows()) ops::cast(exec, result, dy);
  for (std::size_t i = 0; i < layout_.parts.size(); ++i) {
    const LoraPart& part = layout_.parts[i];
    const std::int64_t end = part.row + part.rows;
    ops::scale_columns(exec, result.slice_cols(part.row, end), dy.slice_cols(part.row, end), factors_[i]);
  }
  return result;
}

View LoraWeight::project_input(Exec& exec, ConstView x) const {
  View inner = exec.arena().scratch("adapter input", x.dtype(), {x.dim(0), seen_a().dim(0)});
  matmul(exec, inner, x, no, seen_a(), yes);
  return inner;
}

View LoraWeight::project_output(Exec& exec, ConstView dy) const {
  View inner = exec.arena().scratch("adapter output gradient", dy.dtype(), {dy.dim(0), seen_a().dim(0)});
  for_each_seen(layout_, [&](std::size_t i, const LoraPart& part, std::int64_t begin, std::int64_t end) {
    matmul(exec, inner.slice_cols(begin, end), dy.slice_cols(part.row, part.row + part.rows), no, seen_b(i), no,
           {.alpha = static_cast<float>(part.scale)});
  });
  return inner;
}

void LoraWeight::forward(Exec& exec, View y, Grad mode, ConstView x, const ops::Call& call) {
  if (off_) return base_->forward(exec, y, mode, x, call);
  INLAY_ASSERT(!layout_.dora || mode == Grad::overwrite, "{}: factors of rows reach all of y", parameter().name);
  multiply(exec, y, mode, x, call);
  for (std::size_t i = 0; i < factors_.size(); ++i) {
    const View mine = y.slice_cols(layout_.parts[i].row, layout_.parts[i].row + layout_.parts[i].rows);
    ops::scale_columns(exec, mine, mine, factors_[i]);
  }
}

void LoraWeight::multiply(Exec& exec, View y, Grad mode, ConstView x, const ops::Call& call) {
  const ScratchScope scope(exec.arena());
  const View inner = project_input(exec, dropped(exec, x, call));
  const auto add = [&](Grad how) {
    for_each_seen(layout_, [&](std::size_t i, const LoraPart& part, std::int64_t begin, std::int64_t end) {
      matmul(exec, y.slice_cols(part.row, part.row + part.rows), inner.slice_cols(begin, end), no, seen_b(i), yes,
             {.alpha = static_cast<float>(part.scale), .beta = beta_of(how)});
    });
  };
  // The base's product is bound by arithmetic, so that what it adds to costs it next to nothing.
  const bool first = covers_all_rows();
  if (first) add(mode);
  base_->forward(exec, y, first ? Grad::accumulate : mode, x, call);
  if (!first) add(Grad::accumulate);
}

void LoraWeight::multiply_back(Exec& exec, View dx, Grad mode, ConstView dz, ConstView inner, const ops::Call& call) {
  if (drops_) {
    const ScratchScope scope(exec.arena());
    View seen = exec.arena().scratch("adapter input gradient", dx.dtype(), dx.shape());
    matmul(exec, seen, inner, no, seen_a(), no, {.device_alpha = call.device_alpha});
    ops::dropout(exec, dx, mode, seen, mask(call));
  } else {
    matmul(exec, dx, inner, no, seen_a(), no, {.beta = beta_of(mode), .device_alpha = call.device_alpha});
  }
  base_->backward_input(exec, dx, Grad::accumulate, dz, call);
}

void LoraWeight::add_magnitudes(Exec& exec, ConstView dy, ConstView x, const ops::Call& call) {
  if (!layout_.dora) return;
  INLAY_ASSERT(call.device_alpha == nullptr, "{}: magnitudes do not support a factor on the device", parameter().name);
  const ScratchScope scope(exec.arena());
  View z = exec.arena().scratch("product before the rows' factors", dy.dtype(), dy.shape());
  multiply(exec, z, Grad::overwrite, x, call);
  for (std::size_t i = 0; i < magnitude_.size(); ++i) {
    const std::int64_t begin = layout_.parts[i].row, end = begin + layout_.parts[i].rows;
    const Grad mode = magnitude_[i].next_grad_mode();
    ops::column_dot(exec, magnitude_[i].grad, mode, dy.slice_cols(begin, end), z.slice_cols(begin, end));
  }
}

void LoraWeight::add_gradients(Exec& exec, ConstView dz, ConstView inner, ConstView x, const ops::Call& call) {
  const ScratchScope scope(exec.arena());
  const ConstView seen = dropped(exec, x, call);
  const View projected = project_input(exec, seen);
  for_each_seen(layout_, [&](std::size_t i, const LoraPart& part, std::int64_t column, std::int64_t) {
    const Grad mode = b_[i].next_grad_mode();
    matmul(exec, b_[i].grad, dz.slice_cols(part.row, part.row + part.rows), yes,
           projected.slice_cols(column, column + part.rank), no,
           {.alpha = static_cast<float>(part.scale), .beta = beta_of(mode), .device_alpha = call.device_alpha});
  });
  const Grad mode = a_.next_grad_mode();
  for_each_stretch(layout_, [&](std::int64_t row, std::int64_t end, std::int64_t column) {
    matmul(exec, a_.grad.slice_rows(row, end), inner.slice_cols(column, column + end - row), yes, seen, no,
           {.beta = beta_of(mode), .device_alpha = call.device_alpha});
  });
}

void LoraWeight::backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const ops::Call& call) {
  if (mode == Grad::skip) return;
  const ScratchScope scope(exec.arena());
  const ConstView dz = before_factors(exec, dy);
  multiply_back(exec, dx, mode, dz, project_output(exec, dz), call);
}

void LoraWeight::accumulate(Exec& exec, ConstView dy, ConstView x, const ops::Call& call) {
  if (!training_) return;
  const ScratchScope scope(exec.arena());
  add_magnitudes(exec, dy, x, call);
  const ConstView dz = before_factors(exec, dy);
  add_gradients(exec, dz, project_output(exec, dz), x, call);
}

void LoraWeight::backward(Exec& exec, View dx, Grad mode, ConstView dy, ConstView x, const ops::Call& call) {
  const ScratchScope scope(exec.arena());
  if (training_) add_magnitudes(exec, dy, x, call);
  const ConstView dz = before_factors(exec, dy);
  const View inner = project_output(exec, dz);
  if (training_) add_gradients(exec, dz, inner, x, call);
  if (mode != Grad::skip) multiply_back(exec, dx, mode, dz, inner, call);
}

void LoraWeight::lookup(Exec& exec, View out, ConstView tokens) { base_->lookup(exec, out, tokens); }

void LoraWeight::accumulate_lookup(Exec&, ConstView, const ops::TokenGroups&) {}

void LoraWeight::read_rows(Exec& exec, View rows, std::int64_t row) {
  base_->read_rows(exec, rows, row);
  finish_rows(exec, rows, row);
}

void LoraWeight::complete(Exec& exec, View rows, std::int64_t row) {
  base_->complete(exec, rows, row);
  finish_rows(exec, rows, row);
}

void LoraWeight::finish_rows(Exec& exec, View rows, std::int64_t row) {
  add_change(exec, rows, row);
  for (std::size_t i = 0; i < factors_.size(); ++i) {
    const LoraPart& part = layout_.parts[i];
    const std::int64_t begin = std::max(row, part.row), end = std::min(row + rows.dim(0), part.row + part.rows);
    if (begin >= end) continue;
    // By the norms of these very rows: what was trained with may have been rounded.
    const ScratchScope scope(exec.arena());
    const View mine = rows.slice_rows(begin - row, end - row);
    View factors = exec.arena().scratch("factors of rows", DType::f32, {end - begin});
    ops::row_norms(exec, factors, mine);
    ops::quotients(exec, factors, magnitude_[i].value.slice(0, begin - part.row, end - part.row), factors);
    ops::scale_rows(exec, mine, factors);
  }
}

void LoraWeight::add_change(Exec& exec, View rows, std::int64_t row) {
  for_each_part(layout_, [&](std::size_t i, const LoraPart& part, std::int64_t column) {
    const std::int64_t begin = std::max(row, part.row), end = std::min(row + rows.dim(0), part.row + part.rows);
    if (begin >= end) return;
    const ScratchScope part_scope(exec.arena());
    const View mine = rows.slice_rows(begin - row, end - row);
    const backend::MatmulScale added{.alpha = static_cast<float>(part.scale), .beta = 1.0f};
    matmul(exec, mine, master_of(exec, b_[i], begin - part.row, end - part.row), no,
           exact_a(exec, column, column + part.rank), no, added);
    if (!layout_.pissa) return;
    const std::int64_t start = 2 * column + part.rank;
    matmul(exec, mine,
           widened(exec, both_b_[i].slice(0, begin - part.row, end - part.row).slice_cols(part.rank, 2 * part.rank)),
           no, widened(exec, both_a_.slice_rows(start, start + part.rank)), no, added);
  });
}

std::unique_ptr<Weight> LoraKind::make(Exec& exec, Parameter& parameter, const WeightMemory& memory) const {
  INLAY_ASSERT(!parameter.trainable, "{} trains itself, and cannot have an adapter", parameter.name);
  auto base = base_->make(exec, parameter, memory);
  return std::make_unique<LoraWeight>(exec, parameter, std::move(base), layout_, memory);
}

std::string LoraKind::describe() const {
  return fmt::format("LoRA of rank {} over {}", layout_.parts.front().rank, base_->describe());
}

}  // namespace inlay::weights
