#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"

namespace inlay {

inline constexpr int max_rank = 4;

// The extents of a tensor, at most four of them.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const std::int64_t> extents) {
    INLAY_ASSERT(extents.size() <= max_rank, "a shape has at most {} dimensions, got {}", max_rank, extents.size());
    for (const std::int64_t extent : extents) extents_[static_cast<std::size_t>(rank_++)] = extent;
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return extents_[static_cast<std::size_t>(axis)]; }
  std::int64_t& operator[](int axis) { return extents_[static_cast<std::size_t>(axis)]; }
  std::int64_t size() const {
    std::int64_t product = 1;
    for (int axis = 0; axis < rank_; ++axis) product *= (*this)[axis];
    return product;
  }
  bool operator==(const Shape&) const = default;
  std::vector<std::int64_t> extents() const { return {extents_.begin(), extents_.begin() + rank_}; }
  std::string str() const;  // "[3, 4]"
  // The same with another first extent.
  Shape with_rows(std::int64_t rows) const {
    Shape result = *this;
    result[0] = rows;
    return result;
  }

 private:
  std::array<std::int64_t, max_rank> extents_{};
  int rank_ = 0;
};

// A typed, strided window on memory that somebody else owns, on whichever device. Strides count elements; the last
// axis is always contiguous. Views are passed by value.
template <class Byte>
class BasicView {
 public:
  using Pointer = std::conditional_t<std::is_const_v<Byte>, const void*, void*>;

  BasicView() = default;
  BasicView(Pointer data, DType dtype, Shape shape) : data_(static_cast<Byte*>(data)), dtype_(dtype), shape_(shape) {
    std::int64_t stride = 1;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      strides_[static_cast<std::size_t>(axis)] = stride;
      stride *= shape[axis];
    }
  }
  BasicView(Pointer data, DType dtype, Shape shape, const std::array<std::int64_t, max_rank>& strides)
      : data_(static_cast<Byte*>(data)), dtype_(dtype), shape_(shape), strides_(strides) {}
  // A View is also a ConstView.
  template <class Other>
  requires(std::is_const_v<Byte>&& std::is_same_v<std::remove_const_t<Byte>, Other>)
      BasicView(const BasicView<Other>& other)  // NOLINT: implicit on purpose
      : data_(other.data_), dtype_(other.dtype_), shape_(other.shape_), strides_(other.strides_) {}

  Pointer data() const { return data_; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  std::int64_t dim(int axis) const { return shape_[axis]; }
  std::int64_t stride(int axis) const { return strides_[static_cast<std::size_t>(axis)]; }
  std::int64_t size() const { return data_ == nullptr ? 0 : shape_.size(); }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype_); }

  // An absent tensor: no bias, no gradient wanted.
  bool absent() const { return data_ == nullptr; }
  explicit operator bool() const { return data_ != nullptr; }

  // As a matrix: the last axis are the columns, everything before it the rows.
  std::int64_t rows() const { return cols() == 0 ? 0 : shape_.size() / cols(); }
  std::int64_t cols() const { return rank() == 0 ? 1 : dim(rank() - 1); }
  // Elements from one row of a rank-2 view to the next.
  std::int64_t ld() const {
    INLAY_ASSERT(rank() == 2, "ld() wants a matrix, got {}", shape_.str());
    return strides_[0];
  }

  bool contiguous() const {
    std::int64_t expected = 1;
    for (int axis = rank() - 1; axis >= 0; --axis) {
      if (dim(axis) != 1 && stride(axis) != expected) return false;
      expected *= dim(axis);
    }
    return true;
  }

  BasicView slice_rows(std::int64_t begin, std::int64_t end) const { return slice(0, begin, end); }
  BasicView slice_cols(std::int64_t begin, std::int64_t end) const { return slice(rank() - 1, begin, end); }

  BasicView slice(int axis, std::int64_t begin, std::int64_t end) const {
    INLAY_ASSERT(0 <= begin && begin <= end && end <= dim(axis), "slice [{}, {}) of axis {} of {}", begin, end, axis,
                 shape_.str());
    BasicView result = *this;
    if (data_ != nullptr) result.data_ = data_ + static_cast<std::size_t>(begin * stride(axis)) * size_of(dtype_);
    result.shape_[axis] = end - begin;
    return result;
  }

  // The same elements under another shape; the view must be contiguous.
  BasicView reshape(Shape shape) const {
    INLAY_ASSERT(contiguous() && shape.size() == shape_.size(), "cannot reshape {} to {}", shape_.str(), shape.str());
    return BasicView(data_, dtype_, shape);
  }

  // A matrix [T, n·d] seen as [T, n, d]; rows may be strided.
  BasicView split_cols(std::int64_t groups) const {
    INLAY_ASSERT(rank() == 2 && dim(1) % groups == 0, "cannot split the columns of {} into {} groups", shape_.str(),
                 groups);
    const std::int64_t width = dim(1) / groups;
    BasicView result = *this;
    result.shape_ = Shape{dim(0), groups, width};
    result.strides_ = {stride(0), width, 1, 0};
    return result;
  }

  // The elements as T, which must be the view's own type.
  template <class T>
  auto as() const {
    INLAY_ASSERT(dtype_of<T>() == dtype_, "tensor is {}, wanted {}", name_of(dtype_), name_of(dtype_of<T>()));
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    return reinterpret_cast<Element*>(data_);
  }

 private:
  template <class>
  friend class BasicView;

  Byte* data_ = nullptr;
  DType dtype_ = DType::f32;
  Shape shape_;
  std::array<std::int64_t, max_rank> strides_{};
};

using View = BasicView<std::byte>;
using ConstView = BasicView<const std::byte>;

}  // namespace inlay
