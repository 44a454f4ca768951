#include "weights/products.h"

#include <algorithm>

namespace inlay::weights {

using backend::ScratchScope;
using backend::Transpose;
using ops::Fp8Forms;
using ops::Fp8Matrix;
using ops::Fp8Role;
using ops::Fp8Use;

namespace {

const Fp8Matrix& form_of(const Fp8Forms& forms, Fp8Use use) { return use == Fp8Use::rows ? forms.rows : forms.columns; }

}  // namespace

Fp8Matrix operand_in_fp8(Exec& exec, std::string_view name, const ops::Fp8Settings& settings, Fp8Role role, Fp8Use use,
                         ConstView plain, const Fp8Forms* at_hand) {
  if (at_hand != nullptr && !form_of(*at_hand, use).absent()) return form_of(*at_hand, use);
  const Fp8Forms made = ops::scratch_fp8(exec, name, settings, role, use, plain.dim(0), plain.dim(1));
  ops::quantise_fp8(exec, made, plain);
  return form_of(made, use);
}

Fp8Products::Fp8Products(Exec& exec, std::string name, const ops::Fp8Settings& settings, std::int64_t rows,
                         std::int64_t cols, bool stays, Fp8Use use)
    : name_(std::move(name)), settings_(settings) {
  if (stays) kept_ = ops::keep_fp8(exec, MemoryClass::weights, name_, settings, Fp8Role::weight, use, rows, cols);
}

Fp8Forms Fp8Products::copies(Exec& exec, ConstView matrix, Fp8Use use) {
  if (!stays()) {
    const Fp8Forms made = ops::scratch_fp8(exec, name_, settings_, Fp8Role::weight, use, matrix.dim(0), matrix.dim(1));
    ops::quantise_fp8(exec, made, matrix);
    return made;
  }
  if (!std::exchange(fresh_, true)) ops::quantise_fp8(exec, kept_, matrix);
  return kept_;
}

void Fp8Products::forward(Exec& exec, View y, Grad mode, ConstView matrix, ConstView x, const ops::Call& call) {
  const ScratchScope scope(exec.arena());
  const Fp8Matrix input = operand_in_fp8(exec, "input", settings_, Fp8Role::input, Fp8Use::rows, x, call.x);
  backend::fp8_matmul(exec, y, input, copies(exec, matrix, Fp8Use::rows).rows, {.beta = beta_of(mode)}, settings_.sums);
}

void Fp8Products::backward_input(Exec& exec, View dx, Grad mode, ConstView matrix, ConstView dy,
                                 const ops::Call& call) {
  const ScratchScope scope(exec.arena());
  const Fp8Matrix gradient = operand_in_fp8(exec, "gradient", settings_, Fp8Role::gradient, Fp8Use::rows, dy, call.dy);
  backend::fp8_matmul(exec, dx, gradient, copies(exec, matrix, Fp8Use::columns).columns,
                      {.beta = beta_of(mode), .device_alpha = call.device_alpha}, settings_.sums);
}

void Fp8Products::accumulate(Exec& exec, View gradient, Grad mode, ConstView dy, ConstView x,
                             const ops::Call& call) const {
  const ScratchScope scope(exec.arena());
  const Fp8Matrix left = operand_in_fp8(exec, "gradient", settings_, Fp8Role::gradient, Fp8Use::columns, dy, call.dy);
  const Fp8Matrix right = operand_in_fp8(exec, "input", settings_, Fp8Role::input, Fp8Use::columns, x, call.x);
  backend::fp8_matmul(exec, gradient, left, right, {.beta = beta_of(mode), .device_alpha = call.device_alpha});
}

void multiply_in_fp8(Exec& exec, std::span<Parameter* const> alike, const ops::Fp8Settings& settings) {
  std::vector<Parameter*> staying;
  for (Parameter* p : alike) {
    if (!p->on_host && !p->holds_value) {
      staying.push_back(p);
    } else {
      p->fp8 = std::make_shared<Fp8Products>(p->name, settings, Fp8Forms{});
    }
  }
  if (staying.empty()) return;
  const Parameter& first = *staying.front();
  const std::vector<Fp8Forms> copies =
      ops::keep_fp8_of_many(exec, MemoryClass::weights, first.name, settings, Fp8Role::weight, Fp8Use::both,
                            first.shape[0], first.shape[1], staying.size());
  for (std::size_t i = 0; i < staying.size(); ++i) {
    staying[i]->fp8 = std::make_shared<Fp8Products>(staying[i]->name, settings, copies[i]);
  }
}

std::vector<Fp8Matrix> copies_of_all(Exec& exec, std::span<const Parameter* const> all, Fp8Use use) {
  std::vector<Fp8Matrix> result;
  if (std::ranges::all_of(all, [](const Parameter* p) { return p->fp8->stays(); })) {
    for (const Parameter* p : all) result.push_back(form_of(p->fp8->copies(exec, p->value, use), use));
    return result;
  }
  const Parameter& first = *all.front();
  const std::vector<Fp8Forms> made = ops::scratch_fp8_of_many(exec, first.name, first.fp8->settings(), Fp8Role::weight,
                                                              use, first.shape[0], first.shape[1], all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    ops::quantise_fp8(exec, made[i], all[i]->value);
    result.push_back(form_of(made[i], use));
  }
  return result;
}

void multiply(Exec& exec, const Parameter& parameter, View y, Grad mode, ConstView x, const ops::Call& call) {
  if (parameter.fp8 != nullptr) return parameter.fp8->forward(exec, y, mode, parameter.value, x, call);
  matmul(exec, y, x, Transpose::no, parameter.value, Transpose::yes, {.beta = beta_of(mode)});
}

void multiply_back(Exec& exec, const Parameter& parameter, View dx, Grad mode, ConstView dy, const ops::Call& call) {
  if (mode == Grad::skip) return;
  if (parameter.fp8 != nullptr) return parameter.fp8->backward_input(exec, dx, mode, parameter.value, dy, call);
  matmul(exec, dx, dy, Transpose::no, parameter.value, Transpose::no,
         {.beta = beta_of(mode), .device_alpha = call.device_alpha});
}

void multiply_over_rows(Exec& exec, const Parameter& parameter, View gradient, Grad mode, ConstView dy, ConstView x,
                        const ops::Call& call) {
  if (mode == Grad::skip) return;
  if (parameter.fp8 != nullptr) return parameter.fp8->accumulate(exec, gradient, mode, dy, x, call);
  matmul(exec, gradient, dy, Transpose::yes, x, Transpose::no,
         {.beta = beta_of(mode), .device_alpha = call.device_alpha});
}

}  // namespace inlay::weights
