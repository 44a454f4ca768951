#pragma once

#include <cstddef>
#include <functional>

namespace inlay {

// Calls work(i) for every i below count on several threads (0: as many as processors are granted), each index once, in
// no order. The first exception ends the work and is thrown again here. For files and text, where pieces differ in
// size; kernels share out loops evenly among threads that wait for them (backend/cpu/parallel.h).
void parallel_each(std::size_t count, int threads, const std::function<void(std::size_t)>& work);

}  // namespace inlay
