#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "backend/cost.h"
#include "core/arena.h"
#include "core/device.h"

namespace inlay {
class Console;
}

namespace inlay::backend {

namespace cuda {
class Context;  // streams and library handles of one GPU; see backend/cuda/context.h
}

enum class Mode : std::uint8_t { run, plan };

// How a gradient is written.
enum class Grad : std::uint8_t { skip, overwrite, accumulate };

// What an op has to say to a person while it works.
enum class Message : std::uint8_t {
  progress,  // what takes its time just now: the next one replaces it
  note,      // what is good to know afterwards, too
};
using MessageSink = std::function<void(Message, std::string_view)>;
// To the console, which must outlive whoever holds the sink; and so to nobody where it is quiet.
MessageSink messages_to(Console& console);

// What every op is handed: the device, its streams and handles, an arena, and whether to work or only to plan. In plan
// mode an op checks its shapes, takes its scratch, counts its work and launches nothing, so one code path plans and
// runs.
// Exec never learns about models.
class Exec {
 public:
  // An Exec that only plans; needs no device.
  static Exec planner(Device device, std::size_t capacity = Arena::unlimited);
  // An Exec that runs in arenas of the given sizes, allocated at once.
  static Exec runner(Device device, std::size_t arena_bytes, std::size_t host_bytes = 0);

  // An Exec that runs in memory, and on a GPU in a stream, that somebody else owns and lends it.
  static Exec guest(Device device);
  void lend(void* memory, std::size_t bytes, void* stream);

  // An Exec whose work runs beside this one's on the same device: on a GPU in a compute lane of its own, which gives
  // way to this one's, and only signals order the two. Its arena is so much of this one's; this one outlives it.
  Exec beside(std::size_t arena_bytes);

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

  // Who takes the messages. Where nobody was named, notes go to standard error, and progress nowhere.
  void set_messages(MessageSink sink) { messages_ = std::move(sink); }
  void say(Message kind, std::string_view text) const;

  // What was planned so far, the host's work included; nothing where this one runs.
  const Cost& cost() const { return *cost_; }
  // When planning, adds to the tally: a product [m, k] · [k, n], tensors that are read or written once each, and
  // anything else by its kind.
  void count_product(DType operands, std::int64_t m, std::int64_t n, std::int64_t k);
  void count_bytes(std::initializer_list<ConstView> moved);
  void count(double Work::*kind, double amount);

  // Copies between host memory and a view of this device. Both wait for the copy to end and do nothing when planning.
  void upload(View to, const void* from);
  void download(void* to, ConstView from);
  void fill_zero(View view);
  // Waits for everything launched so far.
  void synchronize();

 private:
  friend class CostScope;

  Exec(Device device, Mode mode);

  Device device_;
  Mode mode_;
  MessageSink messages_;
  std::shared_ptr<Cost> cost_;  // one with the host's
  std::unique_ptr<cuda::Context> cuda_;
  struct Memory;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Arena> arena_;
  std::shared_ptr<Exec> host_;  // one with those beside it
};

using ScratchScope = Arena::ScratchScope;

// What is counted while it lives belongs to the part; or counts as the share, where a plan goes through more than a run
// will.
class CostScope {
 public:
  CostScope(Exec& exec, StepPart part);
  CostScope(Exec& exec, double share);
  ~CostScope();
  CostScope(const CostScope&) = delete;
  CostScope& operator=(const CostScope&) = delete;

 private:
  Cost& cost_;
  StepPart part_before_;
  double share_before_;
};

}  // namespace inlay::backend
