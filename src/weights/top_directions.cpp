#include "weights/top_directions.h"

#include <algorithm>

#include "backend/matmul.h"
#include "core/philox.h"
#include "ops/elementwise.h"
#include "weights/thin_svd.h"

namespace inlay::weights {

namespace {

using backend::Exec;
using backend::matmul;
using backend::ScratchScope;
using enum backend::Transpose;

// Directions that are followed: what is wanted of them converges with the ratio of the first singular value that is
// left out altogether to the last wanted one. Of a matrix that has no more nothing is left out, and they are exact. In
// a real model (SmolLM2-135M, 16 wanted) the worst matrix's were off by an angle of 24 degrees with 32, and of 2 with
// 64; with 128, by less than fp32 shows, but decomposing takes four times as long.
constexpr std::int64_t least_count = 64;
constexpr int iterations = 16;

// The rows become orthonormal, and span what they did.
void straighten(Exec& exec, View rows, std::string_view name) {
  const ScratchScope scope(exec.arena());
  const ThinSvd svd = thin_svd(exec, rows, OpenDirections::fill, name);
  ops::cast(exec, rows, svd.v);
}

// rows [count, M] = random numbers.
void draw(Exec& exec, View rows) {
  if (exec.planning()) return;
  const Philox philox{0x7155a};
  std::vector<float> values(static_cast<std::size_t>(rows.size()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = philox.normal(i, 0);
  exec.upload(rows, values.data());
}

}  // namespace

TopDirections top_directions(Exec& exec, ConstView w, std::int64_t rank, std::string_view name) {
  const std::int64_t out = w.dim(0), in = w.dim(1), full = std::min(out, in);
  INLAY_ASSERT(w.dtype() == DType::f32 && rank > 0 && rank <= full, "top_directions: {} of {} {}", rank,
               name_of(w.dtype()), w.shape().str());
  const std::int64_t count = std::min(full, std::max(2 * rank, least_count));
  Arena& arena = exec.arena();
  TopDirections top{.u = arena.scratch("singular vectors", DType::f32, {rank, out}),
                    .v = arena.scratch("singular vectors", DType::f32, {rank, in}),
                    .s = {}};
  const ScratchScope scope(arena);
  View q = arena.scratch("directions of the input", DType::f32, {count, in});
  View z = arena.scratch("directions of the output", DType::f32, {count, out});
  draw(exec, q);
  for (int i = 0; i < iterations; ++i) {
    straighten(exec, q, name);
    matmul(exec, z, q, no, w, yes);
    straighten(exec, z, name);
    matmul(exec, q, z, no, w, no);
  }
  straighten(exec, q, name);
  // W ≈ W·qᵀ·q = zᵀ·q, and z = Uᵀ·S·V: what is seen of W's columns is V, of its rows U·q.
  matmul(exec, z, q, no, w, yes);
  const ThinSvd svd = thin_svd(exec, z, OpenDirections::fill, name);
  ops::cast(exec, top.u, svd.v.slice_rows(0, rank));
  View turn = arena.scratch("rotation", DType::f32, svd.u.shape());
  ops::cast(exec, turn, svd.u);
  matmul(exec, top.v, turn.slice_rows(0, rank), no, q, no);
  top.s.assign(svd.s.begin(), svd.s.begin() + rank);
  return top;
}

}  // namespace inlay::weights
