#pragma once

#include <functional>
#include <memory>

#include "backend/exec.h"

namespace inlay::backend {

struct RecordedWork {
  std::shared_ptr<void> graph;
  std::size_t count = 0;  // of kernels and copies
};

// Work that is done again and again on the same tensors: what changes between the times lies on the device. On a GPU it
// is recorded the second time and launched as one from then on, which spares the host hundreds of launches, and the
// device the gaps between them. The work must not wait for the device, nor copy from or to the host.
class Replay {
 public:
  void run(Exec& exec, const std::function<void()>& work);
  // Tensors have moved, or the work is another.
  void forget() { times_ = 0, recorded_ = {}; }
  // How many kernels and copies were recorded; 0: nothing was.
  std::size_t recorded_count() const { return recorded_.count; }

 private:
  int times_ = 0;
  RecordedWork recorded_;
};

namespace cuda {
RecordedWork record_work(Context& context, const std::function<void()>& work);
void launch_recorded(Context& context, void* graph);
}  // namespace cuda

}  // namespace inlay::backend
