#include "backend/replay.h"

#include "backend/cuda/context_internal.h"

namespace inlay::backend::cuda {

RecordedWork record_work(Context& context, const std::function<void()>& work) {
  const cudaStream_t stream = static_cast<GpuContext&>(context).stream();
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "recording");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {  // the stream must not stay as it is
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "recording");
  const std::unique_ptr<CUgraph_st, cudaError_t (*)(cudaGraph_t)> owner(graph, cudaGraphDestroy);
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0), "recording");
  RecordedWork result;
  result.graph = {executable, [](void* made) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(made)); }};
  check(cudaGraphGetNodes(graph, nullptr, &result.count), "recording");
  return result;
}

void launch_recorded(Context& context, void* graph) {
  const cudaStream_t stream = static_cast<GpuContext&>(context).stream();
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream), "recorded work");
}

}  // namespace inlay::backend::cuda
