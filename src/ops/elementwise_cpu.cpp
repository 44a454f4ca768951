#include "ops/elementwise.h"

#include <cstring>

#include "ops/column_sums.h"

namespace inlay::ops::cpu {

namespace {

// body(to, from, n) for pairs of runs of n consecutive elements that cover both views.
template <class To, class From, class Body>
void for_runs(View to, ConstView from, const Body& body) {
  if (to.contiguous() && from.contiguous()) {
    To* target = to.as<To>();
    const From* source = from.as<From>();
    // In units of a vector, so that only the last run is ragged.
    const std::int64_t size = to.size();
    parallel_for((size + lanes - 1) / lanes, 1024, [&](std::int64_t begin, std::int64_t end) {
      body(target + begin * lanes, source + begin * lanes, std::min(end * lanes, size) - begin * lanes);
    });
    return;
  }
  const Rows<To> to_rows(to);
  const Rows<const From> from_rows(from);
  parallel_for(to.rows(), row_grain(to.cols()), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(to_rows[row], from_rows[row], to.cols());
  });
}

template <class To, class From>
void convert(View to, ConstView from) {
  for_runs<To, From>(to, from, [](To* target, const From* source, std::int64_t n) {
    if constexpr (std::is_same_v<To, From>) {
      std::memmove(static_cast<void*>(target), source, static_cast<std::size_t>(n) * sizeof(To));
    } else if constexpr (std::is_same_v<From, double>) {
      for (std::int64_t i = 0; i < n; ++i) target[i] = static_cast<To>(static_cast<float>(source[i]));
    } else if constexpr (std::is_same_v<To, double>) {
      for (std::int64_t i = 0; i < n; ++i) target[i] = static_cast<float>(source[i]);
    } else {
      each_vector(0, n, [&](std::int64_t i, auto part) { store(target + i, load(source + i, part), part); });
    }
  });
}

template <class Body>
void with_float_type(DType dtype, const Body& body) {
  if (dtype == DType::f64) return body(double{});
  if (dtype == DType::f16) return body(f16{});
  with_activation(dtype, body);
}

// Rows of a matrix as bytes.
struct ByteRows {
  template <class Byte>
  explicit ByteRows(const BasicView<Byte>& view)
      : data(const_cast<std::byte*>(static_cast<const std::byte*>(view.data()))),
        stride(static_cast<std::size_t>(view.stride(0)) * size_of(view.dtype())) {}
  std::byte* operator[](std::int64_t row) const { return data + static_cast<std::size_t>(row) * stride; }
  std::byte* data;
  std::size_t stride;
};

}  // namespace

void add_bias(Exec&, View y, ConstView bias) {
  with_activation(y.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<T> rows(y);
    const T* b = bias.as<T>();
    parallel_for(y.rows(), row_grain(y.cols()), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        T* to = rows[row];
        each_vector(0, y.cols(), [&](std::int64_t i, auto part) {
          store(to + i, load(to + i, part) + load(b + i, part), part);  // +=
        });
      }
    });
  });
}

void bias_backward(Exec&, View dbias, Grad mode, ConstView dy, View scratch) {
  with_activation(dy.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<const T> rows(dy);
    for_rows_with_sums(dy.rows(), dbias, mode, scratch, [&](std::int64_t row, float* partial) {
      const T* from = rows[row];
      each_vector(0, dy.cols(), [&](std::int64_t i, auto part) {
        store(partial + i, load(partial + i, part) + load(from + i, part), part);  // +=
      });
    });
  });
}

void add(Exec&, View y, ConstView x) {
  with_activation(y.dtype(), [&](auto type) {
    using T = decltype(type);
    for_runs<T, T>(y, x, [](T* to, const T* from, std::int64_t n) {
      each_vector(0, n, [&](std::int64_t i, auto part) {
        store(to + i, load(to + i, part) + load(from + i, part), part);  // +=
      });
    });
  });
}

void scale(Exec&, View y, ConstView x, float factor) {
  with_activation(y.dtype(), [&](auto type) {
    using T = decltype(type);
    for_runs<T, T>(y, x, [factor](T* to, const T* from, std::int64_t n) {
      each_vector(0, n, [&](std::int64_t i, auto part) { store(to + i, load(from + i, part) * factor, part); });
    });
  });
}

void softcap(Exec&, View x, float cap) {
  for_runs<float, float>(x, x, [cap](float* to, const float* from, std::int64_t n) {
    each_vector(0, n, [&](std::int64_t i, auto part) {
      store(to + i, cap * backend::cpu::tanh(load(from + i, part) / cap), part);
    });
  });
}

void cast(Exec&, View to, ConstView from) {
  with_float_type(to.dtype(), [&](auto to_type) {
    with_float_type(from.dtype(), [&](auto from_type) { convert<decltype(to_type), decltype(from_type)>(to, from); });
  });
}

void scale_rows(Exec&, View x, ConstView factors) {
  const auto scale = [&](auto type) {
    using T = decltype(type);
    const Rows<T> rows(x);
    const T* factor = factors.as<T>();
    parallel_for(x.rows(), row_grain(x.cols()), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        T* to = rows[row];
        for (std::int64_t i = 0; i < x.cols(); ++i) to[i] *= factor[row];
      }
    });
  };
  x.dtype() == DType::f64 ? scale(double{}) : scale(float{});
}

void gather_rows(Exec&, View to, ConstView from, ConstView rows) {
  const ByteRows to_rows(to), from_rows(from);
  const std::size_t bytes = static_cast<std::size_t>(to.cols()) * size_of(to.dtype());
  const auto* index = rows.as<std::int32_t>();
  parallel_for(to.rows(), row_grain(to.cols()), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) std::memcpy(to_rows[row], from_rows[index[row]], bytes);
  });
}

void scatter_rows(Exec&, View to, ConstView from, ConstView rows) {
  const ByteRows to_rows(to), from_rows(from);
  const std::size_t bytes = static_cast<std::size_t>(to.cols()) * size_of(to.dtype());
  const std::int64_t count = rows.dim(0);
  const auto* index = rows.as<std::int32_t>();
  // Every row of `to` is written once: its source comes next in the ascending list, or it is cleared.
  parallel_for(to.rows(), row_grain(to.cols()), [&](std::int64_t begin, std::int64_t end) {
    std::int64_t next = std::lower_bound(index, index + count, begin) - index;
    for (std::int64_t row = begin; row < end; ++row) {
      if (next < count && index[next] == row) {
        std::memcpy(to_rows[row], from_rows[next++], bytes);
      } else {
        std::memset(to_rows[row], 0, bytes);
      }
    }
  });
}

}  // namespace inlay::ops::cpu
