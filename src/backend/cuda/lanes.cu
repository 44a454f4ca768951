#include "backend/cuda/context_internal.h"
#include "backend/lanes.h"

namespace inlay::backend::cuda {

namespace {
GpuContext& gpu(Context& context) { return static_cast<GpuContext&>(context); }
}  // namespace

std::shared_ptr<void> make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "make_event");
  return {event, [](void* e) { cudaEventDestroy(static_cast<cudaEvent_t>(e)); }};
}

void record(Context& context, void* event, Lane lane) {
  check(cudaEventRecord(static_cast<cudaEvent_t>(event), gpu(context).stream(lane)), "record");
}

void wait(Context& context, void* event, Lane lane) {
  check(cudaStreamWaitEvent(gpu(context).stream(lane), static_cast<cudaEvent_t>(event), 0), "wait");
}

void wait_on_host(void* event) {
  use_bound_device();
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(event)), "wait_on_host");
}

void copy(Context& context, void* to, const void* from, std::size_t bytes, Lane lane) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, gpu(context).stream(lane)), "copy");
}

void call(Context& context, Lane lane, std::function<void()> work) {
  auto* owned = new std::function<void()>(std::move(work));
  const cudaError_t status = cudaLaunchHostFunc(
      gpu(context).stream(lane),
      [](void* data) {
        const std::unique_ptr<std::function<void()>> mine(static_cast<std::function<void()>*>(data));
        (*mine)();
      },
      owned);
  if (status != cudaSuccess) delete owned;
  check(status, "call");
}

}  // namespace inlay::backend::cuda
