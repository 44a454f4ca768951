#pragma once

namespace inlay::backend::cpu {

// The threads that kernels may use: OMP_NUM_THREADS, but no more than this process is granted. More would not be
// faster.
int threads();

// Fewer, where other processes compute on the same processors; never more than are granted.
void limit_threads(int most);
// Any number, for tests.
void set_threads(int count);

}  // namespace inlay::backend::cpu
