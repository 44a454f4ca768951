#include "backend/cuda/context.h"
#include "backend/cuda/grouped_matmul.h"
#include "backend/cuda/matmul.h"
#include "backend/cuda/runtime_compiler.h"
#include "backend/eigen.h"
#include "backend/lanes.h"
#include "backend/matmul_f64.h"
#include "backend/replay.h"
#include "core/error.h"

// Stands in for the CUDA backend where it is not built.
namespace inlay::backend::cuda {

namespace {
[[noreturn]] void unavailable() {
  user_error("device: cuda was asked for, but this inlay was built without CUDA (install nvcc and run ./dev build)");
}
}  // namespace

bool built() { return false; }
std::string toolkit_version() { return {}; }
bool available() { return false; }
std::string device_name() { return "none"; }
int compute_capability() { return 0; }
std::string device_description() { return "none"; }
std::size_t device_memory() { return 0; }
std::size_t device_memory_used() { return 0; }
int device_count() { return 0; }
void bind_device(int) { unavailable(); }
void use_bound_device() {}
DeviceAddress device_address() { unavailable(); }

std::unique_ptr<Context> make_context(Precedence) { unavailable(); }
void set_stream(Context&, void*) { unavailable(); }
void* allocate(std::size_t) { unavailable(); }
void deallocate(void*) {}
void pin(void*, std::size_t) { unavailable(); }
void unpin(void*) {}
std::shared_ptr<void> make_event() { unavailable(); }
void record(Context&, void*, Lane) { unavailable(); }
void wait(Context&, void*, Lane) { unavailable(); }
void wait_on_host(void*) { unavailable(); }
void copy(Context&, void*, const void*, std::size_t, Lane) { unavailable(); }
void call(Context&, Lane, std::function<void()>) { unavailable(); }
RecordedWork record_work(Context&, const std::function<void()>&) { unavailable(); }
void launch_recorded(Context&, void*) { unavailable(); }
void copy_to_device(Context&, void*, const void*, std::size_t) { unavailable(); }
void copy_to_host(Context&, void*, const void*, std::size_t) { unavailable(); }
void fill_zero(Context&, void*, std::size_t) { unavailable(); }
void synchronize(Context&) { unavailable(); }
void matmul(Exec&, View, View, ConstView, Transpose, ConstView, Transpose, MatmulScale) { unavailable(); }
void fp8_matmul(Exec&, View, View, const Fp8Matrix&, const Fp8Matrix&, MatmulScale, Fp8Sums) { unavailable(); }
void copy_rows(Exec&, View, ConstView) { unavailable(); }
void grouped_matmul(Exec&, View, ConstView, std::span<const ConstView>, Transpose, ConstView, MatmulScale) {
  unavailable();
}
void grouped_matmul_over_rows(Exec&, std::span<const View>, Grad, ConstView, ConstView, ConstView, float) {
  unavailable();
}
bool grouped_fp8_built() { return false; }
void grouped_fp8_matmul(Exec&, View, const Fp8Matrix&, std::span<const Fp8Matrix>, ConstView, MatmulScale, Fp8Sums) {
  unavailable();
}
void grouped_fp8_matmul_over_rows(Exec&, std::span<const View>, Grad, const Fp8Matrix&, const Fp8Matrix&, ConstView,
                                  float) {
  unavailable();
}
void matmul_f64(Exec&, View, View, ConstView, Transpose, ConstView, Transpose, double, double) { unavailable(); }
CompiledCode compile_at_run_time(const CompileRequest&, const CompileProgress&) {
  return {.error = "built without CUDA"};
}
void symmetric_eigen(Exec&, View, View, View) { unavailable(); }

}  // namespace inlay::backend::cuda
