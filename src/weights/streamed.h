#pragma once

#include <functional>
#include <vector>

#include "backend/lanes.h"
#include "weights/access.h"
#include "weights/weight.h"

namespace inlay::weights {

// Layers whose matrices live on the host. Two buffers of the device take turns in holding a layer's values, two more
// its gradients; copies run beside the kernels of the layer before. Between uses a parameter's views are those of the
// host.
class StreamedWeights final : public WeightAccess {
 public:
  // The matrices of every layer that are on the host; an empty list where all of a layer stays on the device.
  StreamedWeights(Exec& exec, std::vector<std::vector<Parameter*>> layers);

  void acquire(Exec& exec, std::int64_t layer, Pass pass) override;
  void release(Exec& exec, std::int64_t layer, Pass pass) override;

  // The host's values are about to change: what the buffers hold is of no use any more.
  void forget();

  // Called before a layer's values leave the host, which may not be final yet.
  std::function<void(std::int64_t layer)> before_upload;
  // Called after a backward pass of a layer; its gradients are on the host once the signal has come.
  std::function<void(std::int64_t layer, const backend::Signal& arrived)> after_backward;

 private:
  struct Matrix {
    Parameter* parameter;
    View value, grad;                               // on the host; grad absent where frozen
    std::size_t value_offset = 0, grad_offset = 0;  // in a buffer
  };
  struct Buffer {
    View memory;
    std::int64_t layer = -1;  // whose values or gradients it holds
    bool busy = false;        // kernels may still be launched on it
    bool fresh = false;       // values as they came from the host
    backend::Signal used, arrived, copied;
  };

  bool streams(std::int64_t layer) const;
  Buffer* find(std::vector<Buffer>& buffers, std::int64_t layer);
  Buffer* take(std::vector<Buffer>& buffers, std::int64_t layer);
  void prefetch(Exec& exec, std::int64_t layer, Pass pass);
  void bind_gradients(Exec& exec, std::int64_t layer);
  void send_gradients(Exec& exec, std::int64_t layer);

  std::vector<std::vector<Matrix>> layers_;
  std::vector<Buffer> values_, grads_;
  std::vector<backend::Signal> sent_;  // a layer's gradients, to the host
};

}  // namespace inlay::weights
