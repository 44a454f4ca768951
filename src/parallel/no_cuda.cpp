#include "core/error.h"
#include "parallel/simulated.h"

// Never reached: without CUDA there is no Exec on a GPU.
namespace inlay::parallel::cuda {

namespace {
[[noreturn]] void unavailable() { throw InternalError("a simulated process on a GPU, without CUDA"); }
}  // namespace

void mark_time(backend::Exec&) { unavailable(); }
void wait_since_mark(backend::Exec&, double) { unavailable(); }
void scale(backend::Exec&, View, double) { unavailable(); }
void repeat(backend::Exec&, View, ConstView, std::size_t) { unavailable(); }

}  // namespace inlay::parallel::cuda
