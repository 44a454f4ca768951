#pragma once

#include <functional>

#include "weights/parameter.h"

namespace inlay::weights {

// What a group of weights is asked for: its values; these and its gradients; its gradients alone.
enum class Pass : std::uint8_t { forward, backward, gradients };

// Asked before and after a group of weights is used: a layer by its number, or one of those outside the layers. Where
// they live elsewhere (host memory, other processes), acquire awaits their coming and release lets the buffer be reused
// and begins to bring the next ones.
class WeightAccess {
 public:
  static constexpr std::int64_t embedding = -1;

  virtual ~WeightAccess() = default;
  // A micro-batch begins; the last of a step leaves gradients that are complete.
  virtual void begin_pass(bool /*last*/) {}
  virtual void acquire(Exec& exec, std::int64_t group, Pass pass) = 0;
  virtual void release(Exec& exec, std::int64_t group, Pass pass) = 0;
  // Who reads gradients from now on sees the sums over all processes.
  virtual void finish_gradients(Exec&) {}
  // All values that change in a step have changed, where they live.
  virtual void values_changed(Exec&) {}
};

// Weights that are always there.
class ResidentWeights final : public WeightAccess {
 public:
  void begin_pass(bool last) override { last_pass_ = last; }
  void acquire(Exec&, std::int64_t, Pass) override {}
  void release(Exec& exec, std::int64_t group, Pass pass) override {
    if (last_pass_ && pass != Pass::forward && after_last_use) after_last_use(exec, group);
  }

  // Called in a step's last pass, when all work is launched that reads a group's values or writes its gradients.
  std::function<void(Exec& exec, std::int64_t group)> after_last_use;

 private:
  bool last_pass_ = true;
};

}  // namespace inlay::weights
