#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/arena.h"
#include "core/device.h"

namespace inlay::backend {

namespace cuda {
class Context;  // streams and library handles of one GPU; see backend/cuda/context.h
}

enum class Mode : std::uint8_t { run, plan };

// How a gradient is written.
enum class Grad : std::uint8_t { skip, overwrite, accumulate };

// What every op is handed: the device, its streams and handles, an arena, and whether to work or only to plan. In plan
// mode an op checks its shapes, takes its scratch and launches nothing, so one code path plans and runs.
// Exec never learns about models.
class Exec {
 public:
  // An Exec that only plans; needs no device.
  static Exec planner(Device device, std::size_t capacity = Arena::unlimited);
  // An Exec that runs in arenas of the given sizes, allocated at once.
  static Exec runner(Device device, std::size_t arena_bytes, std::size_t host_bytes = 0);

  Exec(Exec&&) noexcept;
  Exec& operator=(Exec&&) noexcept;
  ~Exec();

  Device device() const { return device_; }
  bool on_cuda() const { return device_ == Device::cuda; }
  bool planning() const { return mode_ == Mode::plan; }
  Arena& arena() { return *arena_; }
  // The host beside the device, for what does not stay there: runs ops on the CPU, and its arena is pinned for a GPU,
  // so that copies run beside the kernels (backend/lanes.h). It has no host of its own.
  Exec& host() { return *host_; }
  cuda::Context& cuda();

  // Copies between host memory and a view of this device. Both wait for the copy to end and do nothing when planning.
  void upload(View to, const void* from);
  void download(void* to, ConstView from);
  void fill_zero(View view);
  // Waits for everything launched so far.
  void synchronize();

 private:
  Exec(Device device, Mode mode);

  Device device_;
  Mode mode_;
  std::unique_ptr<cuda::Context> cuda_;
  struct Memory;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Exec> host_;
};

using ScratchScope = Arena::ScratchScope;

}  // namespace inlay::backend
