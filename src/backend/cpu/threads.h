#pragma once

namespace inlay::backend::cpu {

// Keeps OpenMP to the processors that this process may use, whatever OMP_NUM_THREADS says: more would not be faster,
// and for very many the runtime crashes. Holds for the calling thread: each that computes and was not made by OpenMP
// says so for itself.
void limit_threads();
// The same where other processes compute on these processors, too.
void limit_threads(int most);

}  // namespace inlay::backend::cpu
