#include "backend/lanes.h"

#include <cstring>

#include "backend/cpu/parallel.h"

namespace inlay::backend {

void Signal::record(Exec& exec, Lane lane) {
  if (exec.planning() || !exec.on_cuda()) return;
  if (event_ == nullptr) event_ = cuda::make_event();
  cuda::record(exec.cuda(), event_.get(), lane);
}

void Signal::wait(Exec& exec, Lane lane) const {
  if (event_ != nullptr) cuda::wait(exec.cuda(), event_.get(), lane);
}

void Signal::wait_on_host() const {
  if (event_ != nullptr) cuda::wait_on_host(event_.get());
}

namespace {

// One thread does not use up the memory's bandwidth.
void copy_bytes(void* to, const void* from, std::size_t bytes) {
  cpu::parallel_for(static_cast<std::int64_t>(bytes), std::int64_t{1} << 20, [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                static_cast<std::size_t>(end - begin));
  });
}

void copy(Exec& exec, View to, ConstView from, Lane lane) {
  INLAY_ASSERT(to.contiguous() && from.contiguous() && to.bytes() == from.bytes(), "copy of {} to {}",
               from.shape().str(), to.shape().str());
  if (exec.on_cuda()) {
    exec.count(lane == Lane::to_host ? &Work::to_host : &Work::to_device, static_cast<double>(to.bytes()));
  } else {
    exec.count_bytes({to, from});
  }
  if (exec.planning() || to.bytes() == 0) return;
  if (exec.on_cuda()) return cuda::copy(exec.cuda(), to.data(), from.data(), to.bytes(), lane);
  copy_bytes(to.data(), from.data(), to.bytes());
}

}  // namespace

void copy_to_host(Exec& exec, View host, ConstView device) { copy(exec, host, device, Lane::to_host); }
void copy_to_device(Exec& exec, View device, ConstView host) { copy(exec, device, host, Lane::to_device); }

void copy_in_lane(Exec& exec, View to, ConstView from, Lane lane) {
  INLAY_ASSERT(to.contiguous() && from.contiguous() && to.bytes() == from.bytes(), "copy of {} to {}",
               from.shape().str(), to.shape().str());
  exec.count_bytes({to, from});
  if (exec.planning() || to.bytes() == 0) return;
  if (exec.on_cuda()) return cuda::copy(exec.cuda(), to.data(), from.data(), to.bytes(), lane);
  copy_bytes(to.data(), from.data(), to.bytes());
}

void call_in_lane(Exec& exec, Lane lane, std::function<void()> work) {
  if (exec.planning()) return;
  if (exec.on_cuda()) return cuda::call(exec.cuda(), lane, std::move(work));
  work();
}

}  // namespace inlay::backend
