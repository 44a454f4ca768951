#include "backend/cpu/threads.h"

#include <omp.h>

#include <algorithm>

namespace inlay::backend::cpu {

void limit_threads() { limit_threads(omp_get_num_procs()); }

void limit_threads(int most) { omp_set_num_threads(std::min({omp_get_max_threads(), omp_get_num_procs(), most})); }

}  // namespace inlay::backend::cpu
