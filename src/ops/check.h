#pragma once

#include <initializer_list>
#include <string_view>

#include "backend/exec.h"

// What the ops share: the names they speak of, and the checks with which each of them begins. A failed check is a
// defect of the caller, so it is an assertion that names the op.
namespace inlay::ops {

using backend::Exec;
using backend::Grad;
using backend::ScratchScope;

inline void check_shape(std::string_view op, std::string_view tensor, const ConstView& view, const Shape& expected) {
  INLAY_ASSERT(view.shape() == expected, "{}: {} is {}, expected {}", op, tensor, view.shape().str(), expected.str());
}

inline void check_dtype(std::string_view op, std::string_view tensor, const ConstView& view, DType expected) {
  INLAY_ASSERT(view.dtype() == expected, "{}: {} is {}, expected {}", op, tensor, name_of(view.dtype()),
               name_of(expected));
}

// Activations are fp32 or bf16.
inline void check_activation(std::string_view op, std::string_view tensor, const ConstView& view) {
  INLAY_ASSERT(view.dtype() == DType::f32 || view.dtype() == DType::bf16, "{}: {} is {}, expected fp32 or bf16", op,
               tensor, name_of(view.dtype()));
}

// What an op reads of its output before it writes it, for Exec::count_bytes.
inline ConstView read_first(const View& output, Grad mode) { return mode == Grad::accumulate ? output : View{}; }

}  // namespace inlay::ops
