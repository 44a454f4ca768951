#include "weights/decompose.h"

#include <algorithm>
#include <vector>

#include "ops/elementwise.h"
#include "weights/thin_svd.h"

namespace inlay::weights {

void decompose(backend::Exec& exec, const Decomposition& out, ConstView w, std::string_view name) {
  INLAY_ASSERT(w.rank() == 2, "decompose: {} is {}, expected [N, M]", name, w.shape().str());
  const std::int64_t rank = std::min(w.dim(0), w.dim(1));
  ops::check_shape("decompose", "u", out.u, {rank, w.dim(0)});
  ops::check_shape("decompose", "s", out.s, {rank});
  ops::check_shape("decompose", "v", out.v, {rank, w.dim(1)});
  for (const View& view : {out.u, out.s, out.v}) ops::check_dtype("decompose", "a factor", view, DType::f32);
  backend::ScratchScope scope(exec.arena());
  const ThinSvd svd = thin_svd(exec, w, OpenDirections::fill, name);
  ops::cast(exec, out.u, svd.u);
  ops::cast(exec, out.v, svd.v);
  exec.upload(out.s, std::vector<float>(svd.s.begin(), svd.s.end()).data());
}

}  // namespace inlay::weights
