#include <algorithm>
#include <cmath>

#include "ops/elementwise.h"
#include "weights/lora.h"
#include "weights/masters.h"
#include "weights/top_directions.h"

// What adapters begin with and are saved as.
namespace inlay::weights {

using backend::ScratchScope;

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

// B = U·√(S/s) and A = √(S/s)·Vᵀ as the compute dtype has them, so that what is taken out is what is put in, bit for
// bit.
void LoraWeight::start_at_largest(Exec& exec) {
  const std::int64_t in = in_features();
  std::vector<float> a(static_cast<std::size_t>(a_.size()));
  const bool rounds = a_.value.dtype() == DType::bf16;
  const auto as_computed = [&](double value) {
    const auto single = static_cast<float>(value);
    return rounds ? static_cast<float>(bf16(single)) : single;
  };
  for_each_part(layout_, [&](std::size_t i, const LoraPart& part, std::int64_t column) {
    const ScratchScope scope(exec.arena());
    View w = exec.arena().scratch("adapted rows", DType::f32, {part.rows, in});
    base_->read_rows(exec, w, part.row);
    const TopDirections top = top_directions(exec, w, part.rank, parameter().name);
    std::vector<float> u(static_cast<std::size_t>(part.rank * part.rows)), v(static_cast<std::size_t>(part.rank * in));
    exec.download(u.data(), top.u);
    exec.download(v.data(), top.v);
    std::vector<float> b(u.size()), negative(u.size());
    for (std::int64_t k = 0; k < part.rank; ++k) {
      const double size = std::sqrt(top.s[static_cast<std::size_t>(k)] / part.scale);
      for (std::int64_t j = 0; j < in; ++j) {
        a[static_cast<std::size_t>((column + k) * in + j)] =
            as_computed(size * v[static_cast<std::size_t>(k * in + j)]);
      }
      for (std::int64_t j = 0; j < part.rows; ++j) {
        const auto to = static_cast<std::size_t>(j * part.rank + k);
        b[to] = as_computed(size * u[static_cast<std::size_t>(k * part.rows + j)]);
        negative[to] = -b[to];
      }
    }
    set_master(exec, b_[i], b.data());
    View staged = exec.arena().scratch("adapter", DType::f32, b_[i].shape);
    exec.upload(staged, negative.data());
    ops::cast(exec, both_b_[i].slice_cols(part.rank, 2 * part.rank), staged);
  });
  set_master(exec, a_, a.data());
  for_each_part(layout_, [&](std::size_t, const LoraPart& part, std::int64_t column) {
    const std::int64_t row = 2 * column + part.rank;
    ops::cast(exec, both_a_.slice_rows(row, row + part.rank), a_.value.slice_rows(column, column + part.rank));
  });
  refresh(exec);
}

void LoraWeight::refresh(Exec& exec) {
  for_each_part(layout_, [&](std::size_t i, const LoraPart& part, std::int64_t column) {
    const std::int64_t row = 2 * column;
    ops::cast(exec, both_a_.slice_rows(row, row + part.rank), a_.value.slice_rows(column, column + part.rank));
    ops::cast(exec, both_b_[i].slice_cols(0, part.rank), b_[i].value);
  });
}

// A₀ below A, and −B₀ beside B.
void LoraWeight::add_start(Exec& exec, std::size_t part, AdapterNumbers& numbers) const {
  for_each_seen(layout_, [&](std::size_t i, const LoraPart& at, std::int64_t begin, std::int64_t end) {
    if (i != part) return;
    const auto whole = [&](ConstView view) {
      const ScratchScope scope(exec.arena());
      View exact = exec.arena().scratch("adapter", DType::f32, view.shape());
      ops::cast(exec, exact, view);
      std::vector<float> values(static_cast<std::size_t>(view.size()));
      exec.download(values.data(), exact);
      return values;
    };
    const std::vector<float> a = whole(seen_a().slice_rows(begin + at.rank, end));
    numbers.a.insert(numbers.a.end(), a.begin(), a.end());
    std::vector<float> b = whole(seen_b(i));  // with B rounded: its place is taken by B as it is
    for (std::int64_t row = 0; row < at.rows; ++row) {
      std::copy_n(numbers.b.begin() + row * at.rank, at.rank, b.begin() + row * 2 * at.rank);
    }
    numbers.b = std::move(b);
  });
}

Weight::AdapterNumbers LoraWeight::read_adapter(Exec& exec, std::size_t part) {
  AdapterNumbers result;
  for_each_part(layout_, [&](std::size_t i, const LoraPart& at, std::int64_t column) {
    if (i != part) return;
    const ScratchScope scope(exec.arena());
    result.a.resize(static_cast<std::size_t>(at.rank * in_features()));
    exec.download(result.a.data(), exact_a(exec, column, column + at.rank));
    result.b = read_master(exec, b_[i], 0, at.rows);
    if (layout_.pissa) add_start(exec, i, result);
    if (layout_.dora) result.magnitude = read_master(exec, magnitude_[i], 0, at.rows);
  });
  return result;
}

}  // namespace inlay::weights
