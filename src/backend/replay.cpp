#include "backend/replay.h"

namespace inlay::backend {

// The first time is not recorded: libraries are loaded, and algorithms chosen, when they are first called.
void Replay::run(Exec& exec, const std::function<void()>& work) {
  if (!exec.on_cuda() || exec.planning() || ++times_ == 1) return work();
  if (recorded_.graph == nullptr) recorded_ = cuda::record_work(exec.cuda(), work);
  cuda::launch_recorded(exec.cuda(), recorded_.graph.get());
}

}  // namespace inlay::backend
