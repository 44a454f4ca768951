#include "backend/cuda/context_internal.h"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/vec.cuh"
#include "core/philox.h"
#include "ops/dropout.h"

namespace inlay::ops::cuda {

namespace {

using namespace backend::cuda;

struct Chosen {
  Philox philox;
  std::uint64_t site;
  std::int64_t first_row;
  const std::int32_t* rows;  // or null
  std::uint32_t threshold;
  float scale;
};

template <class T, int V, bool accumulate>
__global__ void __launch_bounds__(256)
    drop(T* y, std::int64_t y_ld, const T* x, std::int64_t x_ld, Chosen chosen, RowGrid grid) {
  const RowPlace at = place_in<V>(grid.rows, grid.cols, grid.column_blocks);
  if (!at.inside) return;
  const std::int64_t row = chosen.first_row + (chosen.rows == nullptr ? at.row : chosen.rows[at.row]);
  const auto place = static_cast<std::uint64_t>(row * grid.cols + at.col);
  float in[V], out[V];
  load(in, x + at.row * x_ld + at.col);
  if constexpr (accumulate) load(out, y + at.row * y_ld + at.col);
  constexpr int served = V < 4 ? V : 4;  // rows of vectors begin at whole blocks
#pragma unroll
  for (int begin = 0; begin < V; begin += served) {
    const auto words = chosen.philox.words((place + begin) / 4, chosen.site);
#pragma unroll
    for (int i = 0; i < served; ++i) {
      // Of one number, its own word; selected without an index, which would put the words into memory.
      std::uint32_t word = words[i];
      if constexpr (V == 1) {
        const auto which = static_cast<unsigned>(place % 4);
        word = which < 2 ? (which == 0 ? words[0] : words[1]) : (which == 2 ? words[2] : words[3]);
      }
      const float before = accumulate ? out[begin + i] : 0.0f;
      const float kept = accumulate ? __fmaf_rn(in[begin + i], chosen.scale, before) : in[begin + i] * chosen.scale;
      out[begin + i] = word < chosen.threshold ? before : kept;
    }
  }
  store(y + at.row * y_ld + at.col, out);
}

}  // namespace

void dropout(Exec& exec, View y, Grad mode, ConstView x, const Dropout& which) {
  const Chosen chosen{.philox = {which.seed},
                      .site = which.site,
                      .first_row = which.first_row,
                      .rows = which.rows.absent() ? nullptr : pointer<std::int32_t>(which.rows),
                      .threshold = which.threshold(),
                      .scale = which.scale()};
  with_activation_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    with_width<T>(vectors_fit(full_vector<T>, y, x), [&](auto width) {
      const RowGrid grid(x.dim(0), x.dim(1), width);
      const auto launch = [&](auto kernel) {
        kernel<<<grid.blocks, grid.threads, 0, stream_of(exec)>>>(pointer<T>(y), y.ld(), pointer<T>(x), x.ld(), chosen,
                                                                  grid);
      };
      mode == Grad::accumulate ? launch(drop<T, width, true>) : launch(drop<T, width, false>);
    });
  });
  check_launch("dropout");
}

}  // namespace inlay::ops::cuda
