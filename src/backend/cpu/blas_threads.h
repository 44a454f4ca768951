#pragma once

#include <cblas.h>

namespace inlay::backend::cpu {

// So many threads for OpenBLAS's next calls, for all of the process. They wait for each other by giving way to whoever
// else would run, column by column: beside other programs small work takes a hundred times as long with two as with
// one.
inline void use_blas_threads(int count) {
  if (openblas_get_num_threads() != count) openblas_set_num_threads(count);
}

}  // namespace inlay::backend::cpu
