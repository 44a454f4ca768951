#include "ops/embedding.h"

#include "ops/kernels.h"

namespace inlay::ops {

void embedding_forward(Exec& exec, View out, ConstView tokens, ConstView table) {
  constexpr std::string_view op = "embedding_forward";
  check_activation(op, "table", table);
  INLAY_ASSERT(table.rank() == 2, "embedding_forward: table is {}, expected [V, H]", table.shape().str());
  INLAY_ASSERT(tokens.rank() == 1, "embedding_forward: tokens are {}, expected [T]", tokens.shape().str());
  check_dtype(op, "tokens", tokens, DType::i32);
  check_shape(op, "out", out, {tokens.dim(0), table.dim(1)});
  check_dtype(op, "out", out, table.dtype());
  exec.count_bytes({out, out});  // and as many rows of the table
  if (exec.planning() || out.size() == 0) return;
  if (exec.on_cuda()) return cuda::embedding_forward(exec, out, tokens, table);
  cpu::kernels().embedding_forward(exec, out, tokens, table);
}

void embedding_backward(Exec& exec, View dtable, Grad mode, ConstView dout, const TokenGroups& groups) {
  constexpr std::string_view op = "embedding_backward";
  if (mode == Grad::skip) return;
  check_activation(op, "dout", dout);
  check_dtype(op, "dtable", dtable, DType::f32);
  INLAY_ASSERT(dout.rank() == 2 && dtable.rank() == 2 && dtable.dim(1) == dout.dim(1) && dtable.contiguous(),
               "embedding_backward: dtable is {}, dout {}", dtable.shape().str(), dout.shape().str());
  INLAY_ASSERT(groups.ids.rank() == 1, "embedding_backward: ids are {}", groups.ids.shape().str());
  check_shape(op, "order", groups.order, {dout.dim(0)});
  check_shape(op, "starts", groups.starts, {groups.ids.dim(0) + 1});
  for (const ConstView& view : {groups.order, groups.starts, groups.ids}) check_dtype(op, "groups", view, DType::i32);
  exec.count_bytes({dout, mode == Grad::overwrite ? dtable : View{}});
  if (exec.planning()) return;
  if (mode == Grad::overwrite) exec.fill_zero(dtable);
  if (dout.size() == 0) return;
  if (exec.on_cuda()) return cuda::embedding_backward(exec, dtable, dout, groups);
  cpu::kernels().embedding_backward(exec, dtable, dout, groups);
}

}  // namespace inlay::ops
