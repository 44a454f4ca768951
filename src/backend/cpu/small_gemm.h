#pragma once

#include "backend/cpu/gemm.h"

// Small products on the calling thread, for kernels that are parallel already (attention): no OpenMP, no library,
// little overhead. Meant for extents of about 16 to 256; larger ones are right too.
namespace inlay::backend::cpu {

// Keeps this thread's tile registers configured for its lifetime, so that a run of small_gemm() calls pays for that
// once (a call outside any scope opens its own). Cheap to nest, does nothing where AMX is not usable. The scope must
// end on the thread that opened it; open one a thread around the loop over tiles.
class TileScope {
 public:
  TileScope();
  ~TileScope();
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// As gemm(), with the same dtypes and the same bits as any other call of small_gemm() with the same arguments, on the
// calling thread only. bf16 runs on AMX where amx_usable(), everything else on vector code. beta = 0 never reads C.
void small_gemm(const GemmArgs& args, DType in, DType out);

}  // namespace inlay::backend::cpu
