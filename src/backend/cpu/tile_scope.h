#pragma once

#include "backend/cpu/gemm_kernels.h"

namespace inlay::backend::cpu {

// Keeps this thread's tile registers configured for its lifetime, for kernels that multiply tiles by themselves
// (attention). Cheap to nest, does nothing where AMX is not usable. The scope must end on the thread that opened it;
// open one per thread around the loop over tiles.
class TileScope {
 public:
  TileScope() {
    if (amx_usable()) amx_configure_tiles();
  }
  ~TileScope() {
    if (amx_usable()) amx_release_tiles();
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

}  // namespace inlay::backend::cpu
