#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/lanes.h"
#include "ops/adamw.h"

namespace inlay::train {

using backend::Exec;

// AdamW on the host, for layers that live there, on a thread of its own beside the device's work. A layer's gradients
// are summed up as they arrive, while the backward pass goes on below it; where nothing is clipped the layer is updated
// at once, else when the norm is known, and the next forward pass waits for each layer only when it comes to it.
// Without a GPU everything happens where it is asked for: there is nothing to run beside.
class HostOptimizer {
 public:
  using Slot = ops::AdamWSlot;  // all of it on the host

  // `layers` are those with something on the host.
  HostOptimizer(Exec& exec, std::map<std::int64_t, std::vector<Slot>> layers, bool clips);
  ~HostOptimizer();
  HostOptimizer(const HostOptimizer&) = delete;
  HostOptimizer& operator=(const HostOptimizer&) = delete;

  // A step begins: gradients of a layer are complete after so many backward passes. Weight decay is every slot's own.
  void begin_step(int passes, const ops::AdamWSettings& settings);
  // A layer's gradients are on their way.
  void gradients_arriving(std::int64_t layer, const backend::Signal& arrived);
  // Σ g² over everything on the host. Waits for it.
  double square_sum();
  // Counts what a step will do here.
  void plan(const ops::AdamWSettings& settings);
  // Updates everything, with the factor that clips.
  void update(float grad_scale);
  // Blocks until a layer, or all, have been updated.
  void wait_for(std::int64_t layer);
  void wait();

 private:
  struct Layer {
    std::vector<Slot> slots;
    int passes = 0;         // of this step
    double square_sum = 0;  // of this step
    std::size_t job = 0;    // the last one about it
  };

  void submit(Layer& layer, std::function<void()> work);
  void wait_for_job(std::size_t job);
  void work_off();
  void sum(Layer& layer);
  void apply(Layer& layer, float grad_scale, const ops::AdamWSettings& common);

  Exec& exec_;  // the host's
  bool clips_, beside_;
  std::map<std::int64_t, Layer> layers_;
  int passes_ = 1;
  ops::AdamWSettings settings_;
  View sum_, partial_sums_, scale_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::size_t submitted_ = 0, done_ = 0;
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace inlay::train
