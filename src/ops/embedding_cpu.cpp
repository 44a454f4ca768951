#include <cstring>

#include "ops/embedding.h"
#include "ops/rows.h"

namespace inlay::ops::cpu {

void embedding_forward(Exec&, View out, ConstView tokens, ConstView table) {
  const std::size_t width = size_of(table.dtype()), bytes = static_cast<std::size_t>(table.dim(1)) * width;
  const auto* from = static_cast<const std::byte*>(table.data());
  auto* to = static_cast<std::byte*>(out.data());
  const auto from_stride = static_cast<std::size_t>(table.stride(0)) * width;
  const auto to_stride = static_cast<std::size_t>(out.stride(0)) * width;
  const auto* token = tokens.as<std::int32_t>();
  parallel_for(out.dim(0), row_grain(out.dim(1)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::memcpy(to + static_cast<std::size_t>(row) * to_stride,
                  from + static_cast<std::size_t>(token[row]) * from_stride, bytes);
    }
  });
}

namespace {

// Threads share the positions evenly, and each takes the groups that begin in its share: a token's row is summed by
// one thread, in the order of its positions.
template <class T>
void backward(View dtable, ConstView dout, const TokenGroups& groups) {
  const std::int64_t cols = dout.dim(1), count = groups.ids.dim(0);
  const auto *order = groups.order.as<std::int32_t>(), *starts = groups.starts.as<std::int32_t>();
  const auto* ids = groups.ids.as<std::int32_t>();
  const Rows<float> to_rows(dtable);
  const Rows<const T> from_rows(dout);
  parallel_for(dout.dim(0), row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    std::int64_t group = std::lower_bound(starts, starts + count, begin) - starts;
    for (; group < count && starts[group] < end; ++group) {
      float* to = to_rows[ids[group]];
      for (std::int32_t at = starts[group]; at < starts[group + 1]; ++at) {
        const T* from = from_rows[order[at]];
        each_vector(0, cols, [&](std::int64_t i, auto part) {
          store(to + i, load(to + i, part) + load(from + i, part), part);  // +=
        });
      }
    }
  });
}

}  // namespace

void embedding_backward(Exec&, View dtable, ConstView dout, const TokenGroups& groups) {
  with_activation(dout.dtype(), [&](auto type) { backward<decltype(type)>(dtable, dout, groups); });
}

}  // namespace inlay::ops::cpu
