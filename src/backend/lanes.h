#pragma once

#include <functional>
#include <memory>

#include "backend/exec.h"

// Work that runs beside other work on the device: kernels in one lane, copies to the host and from it in one each, and
// what goes to other processes or comes from them in another. What
// is in a lane runs in order; between lanes only signals order it, and the host never waits. On the CPU everything
// happens at once, in program order, so signals have nothing to say there.
namespace inlay::backend {

enum class Lane : std::uint8_t { compute, to_host, to_device, network };

// A moment in a lane, for others to wait for. Waiting for one that was never recorded is no wait.
class Signal {
 public:
  // Everything that is in the lane by now.
  void record(Exec& exec, Lane lane);
  // What is put into the lane from now on begins after it.
  void wait(Exec& exec, Lane lane) const;
  // Blocks the calling thread, which need not be the one that records.
  void wait_on_host() const;

 private:
  std::shared_ptr<void> event_;
};

// Copies of whole, contiguous tensors; `host` is pinned memory. They return at once.
void copy_to_host(Exec& exec, View host, ConstView device);
void copy_to_device(Exec& exec, View device, ConstView host);
// Between places of the device's own memory.
void copy_in_lane(Exec& exec, View to, ConstView from, Lane lane);
// Calls work on a thread of the driver's, in the lane's order. It must not call CUDA, nor throw.
void call_in_lane(Exec& exec, Lane lane, std::function<void()> work);

namespace cuda {
std::shared_ptr<void> make_event();
void record(Context& context, void* event, Lane lane);
void wait(Context& context, void* event, Lane lane);
void wait_on_host(void* event);
void copy(Context& context, void* to, const void* from, std::size_t bytes, Lane lane);
void call(Context& context, Lane lane, std::function<void()> work);
}  // namespace cuda

}  // namespace inlay::backend
