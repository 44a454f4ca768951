#include "weights/lora.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/grouped_matmul.h"
#include "ops/columns.h"
#include "ops/elementwise.h"
#include "weights/dense.h"
#include "weights/masters.h"

namespace inlay::weights {

using backend::grouped_matmul;
using backend::grouped_matmul_over_rows;
using backend::matmul;
using backend::ScratchScope;

namespace {

constexpr auto no = backend::Transpose::no, yes = backend::Transpose::yes;

float beta_of(Grad mode) { return mode == Grad::accumulate ? 1.0f : 0.0f; }

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

// body(part's number, part, its first column among the ranks of all) for every part.
template <class Body>
void for_each_part(const LoraLayout& layout, const Body& body) {
  std::int64_t column = 0;
  for (std::size_t i = 0; i < layout.parts.size(); ++i) {
    body(i, layout.parts[i], column);
    column += layout.parts[i].rank;
  }
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
                    });
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
  b_.reserve(layout.parts.size());
  magnitude_.reserve(layout.parts.size());
  for (std::size_t i = 0; i < layout_.parts.size(); ++i) {
    const LoraPart& part = layout_.parts[i];
    b_.push_back(own(fmt::format(".lora_b.{}", i), memory.compute, {part.rows, part.rank}));
    if (!layout_.dora) continue;
    magnitude_.push_back(own(fmt::format(".lora_m.{}", i), DType::f32, {part.rows}));
    for (std::vector<View>* views : {&norms_, &factors_}) {
      views->push_back(exec.arena().keep(MemoryClass::weights, parameter.name + ".row_norms", DType::f32, {part.rows}));
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
  set(a_);
  if (layout_.inputs) turn_to_free(exec, *tensors);
  for (Parameter& b : b_) set(b);
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

void LoraWeight::turn_to_free(Exec& exec, const StartTensors& tensors) {
  const InputLayout& inputs = *layout_.inputs;
  set_basis(exec, basis_, tensors, inputs.basis_name(parameter().name));
  const ScratchScope scope(exec.arena());
  std::vector<float> rows(static_cast<std::size_t>(a_.size()));
  exec.download(rows.data(), exact_a(exec, 0, a_.rows()));
  // In the mean: what is random in all directions has this share of its energy in those that are left.
  const double share = static_cast<double>(inputs.free) / static_cast<double>(inputs.free + inputs.frozen);
  for (float& value : rows) value /= static_cast<float>(std::sqrt(share));
  set_master(exec, a_, rows.data());
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

double LoraWeight::leak(Exec& exec) {
  if (!layout_.inputs) return 0;
  return leak_of(exec, allowed_, parameter().shape, [&](View rows, std::int64_t row) { add_change(exec, rows, row); });
}

Weight::AdapterNumbers LoraWeight::read_adapter(Exec& exec, std::size_t part) {
  AdapterNumbers result;
  for_each_part(layout_, [&](std::size_t i, const LoraPart& at, std::int64_t column) {
    if (i != part) return;
    const ScratchScope scope(exec.arena());
    result.a.resize(static_cast<std::size_t>(at.rank * in_features()));
    exec.download(result.a.data(), exact_a(exec, column, column + at.rank));
    result.b = read_master(exec, b_[i], 0, at.rows);
    if (layout_.dora) result.magnitude = read_master(exec, magnitude_[i], 0, at.rows);
  });
  return result;
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
  return {.p = static_cast<float>(layout_.dropout), .seed = layout_.seed, .site = site_, .first_row = call.first_row};
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
  View inner = exec.arena().scratch("adapter input", x.dtype(), {x.dim(0), a_.rows()});
  matmul(exec, inner, x, no, a_.value, yes);
  return inner;
}

View LoraWeight::project_output(Exec& exec, ConstView dy) const {
  View inner = exec.arena().scratch("adapter output gradient", dy.dtype(), {dy.dim(0), a_.rows()});
  for_each_part(layout_, [&](std::size_t i, const LoraPart& part, std::int64_t column) {
    matmul(exec, inner.slice_cols(column, column + part.rank), dy.slice_cols(part.row, part.row + part.rows), no,
           b_[i].value, no, {.alpha = static_cast<float>(part.scale)});
  });
  return inner;
}

void LoraWeight::forward(Exec& exec, View y, Grad mode, ConstView x, const ops::Call& call) {
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
    for_each_part(layout_, [&](std::size_t i, const LoraPart& part, std::int64_t column) {
      matmul(exec, y.slice_cols(part.row, part.row + part.rows), inner.slice_cols(column, column + part.rank), no,
             b_[i].value, yes, {.alpha = static_cast<float>(part.scale), .beta = beta_of(how)});
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
    matmul(exec, seen, inner, no, a_.value, no, {.device_alpha = call.device_alpha});
    ops::dropout(exec, dx, mode, seen, mask(call));
  } else {
    matmul(exec, dx, inner, no, a_.value, no, {.beta = beta_of(mode), .device_alpha = call.device_alpha});
  }
  base_->backward_input(exec, dx, Grad::accumulate, dz, call);
}

void LoraWeight::add_magnitudes(Exec& exec, ConstView dy, ConstView x, const ops::Call& call) {
  if (!layout_.dora) return;
  INLAY_ASSERT(call.device_alpha == nullptr, "{}: magnitudes know no factor on the device", parameter().name);
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
  for_each_part(layout_, [&](std::size_t i, const LoraPart& part, std::int64_t column) {
    const Grad mode = b_[i].next_grad_mode();
    matmul(exec, b_[i].grad, dz.slice_cols(part.row, part.row + part.rows), yes,
           projected.slice_cols(column, column + part.rank), no,
           {.alpha = static_cast<float>(part.scale), .beta = beta_of(mode), .device_alpha = call.device_alpha});
  });
  const Grad mode = a_.next_grad_mode();
  matmul(exec, a_.grad, inner, yes, seen, no, {.beta = beta_of(mode), .device_alpha = call.device_alpha});
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
    matmul(exec, rows.slice_rows(begin - row, end - row), master_of(exec, b_[i], begin - part.row, end - part.row), no,
           exact_a(exec, column, column + part.rank), no, {.alpha = static_cast<float>(part.scale), .beta = 1.0f});
  });
}

// The adapters of all experts at once, over whatever their bases do together.
class LoraGroup final : public WeightGroup {
 public:
  LoraGroup(std::vector<LoraWeight*> all, std::unique_ptr<WeightGroup> base)
      : all_(std::move(all)), base_(std::move(base)), layout_(all_.front()->layout_) {}

  void forward(Exec& exec, View y, Grad mode, ConstView x, ConstView offsets, const ops::Call& call) override {
    const ScratchScope scope(exec.arena());
    const View inner = project_input(exec, all_.front()->dropped(exec, x, call), offsets);
    for_each_part(layout_, [&](std::size_t i, const LoraPart& part, std::int64_t column) {
      grouped_matmul(exec, y.slice_cols(part.row, part.row + part.rows), inner.slice_cols(column, column + part.rank),
                     b_values(i), yes, offsets, {.alpha = static_cast<float>(part.scale), .beta = beta_of(mode)});
    });
    base_->forward(exec, y, Grad::accumulate, x, offsets, call);
  }

  void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, ConstView offsets, const ops::Call& call) override {
    const ScratchScope scope(exec.arena());
    multiply_back(exec, dx, mode, dy, project_output(exec, dy, offsets), offsets, call);
  }

  void accumulate(Exec& exec, ConstView dy, ConstView x, ConstView offsets, const ops::Call& call) override {
    const ScratchScope scope(exec.arena());
    add_gradients(exec, dy, project_output(exec, dy, offsets), x, offsets, call);
  }

  void backward(Exec& exec, View dx, Grad mode, ConstView dy, ConstView x, ConstView offsets,
                const ops::Call& call) override {
    const ScratchScope scope(exec.arena());
    const View inner = project_output(exec, dy, offsets);
    add_gradients(exec, dy, inner, x, offsets, call);
    multiply_back(exec, dx, mode, dy, inner, offsets, call);
  }

 private:
  void multiply_back(Exec& exec, View dx, Grad mode, ConstView dy, ConstView inner, ConstView offsets,
                     const ops::Call& call) const {
    if (all_.front()->drops_) {
      const ScratchScope scope(exec.arena());
      View seen = exec.arena().scratch("adapter input gradient", dx.dtype(), dx.shape());
      grouped_matmul(exec, seen, inner, a_values(), no, offsets);
      ops::dropout(exec, dx, mode, seen, all_.front()->mask(call));
    } else {
      grouped_matmul(exec, dx, inner, a_values(), no, offsets, {.beta = beta_of(mode)});
    }
    base_->backward_input(exec, dx, Grad::accumulate, dy, offsets, call);
  }

  void add_gradients(Exec& exec, ConstView dy, ConstView inner, ConstView x, ConstView offsets,
                     const ops::Call& call) const {
    if (!all_.front()->training_) return;
    const ScratchScope scope(exec.arena());
    const ConstView seen = all_.front()->dropped(exec, x, call);
    const View projected = project_input(exec, seen, offsets);
    for_each_part(layout_, [&](std::size_t i, const LoraPart& part, std::int64_t column) {
      sum(
          exec, [&](LoraWeight& weight) -> Parameter& { return weight.b_[i]; },
          dy.slice_cols(part.row, part.row + part.rows), projected.slice_cols(column, column + part.rank), offsets,
          static_cast<float>(part.scale));
    });
    sum(
        exec, [](LoraWeight& weight) -> Parameter& { return weight.a_; }, inner, seen, offsets);
  }

  std::vector<ConstView> a_values() const {
    std::vector<ConstView> result;
    for (const LoraWeight* weight : all_) result.push_back(weight->a_.value);
    return result;
  }
  std::vector<ConstView> b_values(std::size_t part) const {
    std::vector<ConstView> result;
    for (const LoraWeight* weight : all_) result.push_back(weight->b_[part].value);
    return result;
  }

  View project_input(Exec& exec, ConstView x, ConstView offsets) const {
    View inner = exec.arena().scratch("adapter input", x.dtype(), {x.dim(0), layout_.rank()});
    grouped_matmul(exec, inner, x, a_values(), yes, offsets);
    return inner;
  }
  View project_output(Exec& exec, ConstView dy, ConstView offsets) const {
    View inner = exec.arena().scratch("adapter output gradient", dy.dtype(), {dy.dim(0), layout_.rank()});
    for_each_part(layout_, [&](std::size_t i, const LoraPart& part, std::int64_t column) {
      grouped_matmul(exec, inner.slice_cols(column, column + part.rank), dy.slice_cols(part.row, part.row + part.rows),
                     b_values(i), no, offsets, {.alpha = static_cast<float>(part.scale)});
    });
    return inner;
  }
  template <class Own>
  void sum(Exec& exec, const Own& own, ConstView dy, ConstView x, ConstView offsets, float alpha = 1.0f) const {
    std::vector<View> gradients;
    Grad mode = Grad::skip;
    for (LoraWeight* weight : all_) {
      gradients.push_back(own(*weight).grad);
      mode = own(*weight).next_grad_mode();
    }
    grouped_matmul_over_rows(exec, gradients, mode, dy, x, offsets, alpha);
  }

  std::vector<LoraWeight*> all_;
  std::unique_ptr<WeightGroup> base_;
  LoraLayout layout_;
};

std::unique_ptr<WeightGroup> LoraWeight::group(std::span<Weight* const> all) {
  auto mine = all_of<LoraWeight>(all);
  if (mine.empty() || layout_.dora || !covers_all_rows()) return nullptr;
  std::vector<Weight*> bases;
  for (LoraWeight* weight : mine) {
    if (!weight->layout_.same_extents(layout_)) return nullptr;
    bases.push_back(weight->base_.get());
  }
  auto base = bases.front()->group(bases);
  return base == nullptr ? nullptr : std::make_unique<LoraGroup>(std::move(mine), std::move(base));
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
