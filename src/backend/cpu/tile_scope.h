#pragma once

#include "backend/cpu/gemm.h"

namespace inlay::backend::cpu {

// Keeps this thread's tile registers configured for its lifetime, as eight tiles of 16 rows of 64 bytes. Cheap to nest,
// does nothing where AMX is not usable. The scope must end on the thread that opened it; open one per thread around the
// loop over tiles.
class TileScope {
 public:
  TileScope();
  ~TileScope();
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

}  // namespace inlay::backend::cpu
