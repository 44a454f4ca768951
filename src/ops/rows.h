#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/parallel.h"
#include "backend/cpu/vec.h"
#include "core/view.h"

// What the host kernels of the ops share: rows of strided views, and loops over a row a vector at a time.
namespace inlay::ops::cpu {

using backend::cpu::f32v;
using backend::cpu::lanes;
using backend::cpu::load;
using backend::cpu::parallel_for;
using backend::cpu::splat;
using backend::cpu::store;

// The rows of a view of rank 1 to 3, its last axis being the columns. T may be const.
template <class T>
class Rows {
 public:
  template <class Byte>
  explicit Rows(const BasicView<Byte>& view) : data_(view.template as<std::remove_const_t<T>>()) {
    INLAY_ASSERT(view.rank() <= 3, "rows of {}", view.shape().str());
    if (view.rank() == 2) outer_stride_ = view.stride(0);
    if (view.rank() == 3) {
      inner_ = std::max<std::int64_t>(view.dim(1), 1);
      outer_stride_ = view.stride(0);
      inner_stride_ = view.stride(1);
    }
  }
  T* operator[](std::int64_t row) const {
    if (inner_ == 1) return data_ + row * outer_stride_;
    return data_ + row / inner_ * outer_stride_ + row % inner_ * inner_stride_;
  }

 private:
  T* data_;
  std::int64_t inner_ = 1, outer_stride_ = 0, inner_stride_ = 0;
};

// Rows worth a thread's while: about 16 K elements.
inline std::int64_t row_grain(std::int64_t cols) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(cols, 1));
}

// How much of a vector there is: all of it, or the first n lanes at the end of a row.
struct Whole {};
struct Part {
  std::int64_t n;
};
template <class T>
f32v load(const T* from, Whole) {
  return backend::cpu::load(from);
}
template <class T>
f32v load(const T* from, Part part) {
  return backend::cpu::load_some(from, part.n);
}
template <class T>
void store(T* to, f32v value, Whole) {
  backend::cpu::store(to, value);
}
template <class T>
void store(T* to, f32v value, Part part) {
  backend::cpu::store_some(to, value, part.n);
}

// body(i, Whole or Part) for every vector of [begin, end).
template <class Body>
void each_vector(std::int64_t begin, std::int64_t end, const Body& body) {
  std::int64_t i = begin;
  for (; i + lanes <= end; i += lanes) body(i, Whole{});
  if (i < end) body(i, Part{end - i});
}

// Calls body with a value of the activation's storage type: fp32 or bf16.
template <class Body>
void with_activation(DType dtype, const Body& body) {
  if (dtype == DType::bf16) return body(bf16{});
  INLAY_ASSERT(dtype == DType::f32, "an activation of {}", name_of(dtype));
  body(float{});
}

}  // namespace inlay::ops::cpu
