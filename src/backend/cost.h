#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

// What work costs, counted where it is planned: ops say what they multiply and move as they pass by, so that estimates,
// shares of a peak and floors of benchmarks speak of the very work that runs.
namespace inlay::backend {

// The part of a training step that work belongs to. The first three come once per micro-batch, the next two once per
// step.
enum class StepPart : std::uint8_t {
  forward,
  recompute,  // what the forward pass has done before
  backward,
  sums,       // of gradients over processes, beside the last backward pass
  optimizer,  // finishing the gradients, the update, and what follows from it
  none,       // of no step: loading, evaluation, sampling, saving
};
inline constexpr std::size_t step_part_count = 6;

// Amounts of work by what limits their speed.
struct Work {
  std::array<double, dtype_count> products{};  // FLOPs by the operands' dtype: two for each term of a sum
  double attention = 0;                        // FLOPs of its products
  double bytes = 0;                            // through the device's memory, beside products and attention
  double host_bytes = 0;                       // through the host's
  double to_device = 0, to_host = 0;           // bytes over the link
  double to_disk = 0, from_disk = 0;
  double network = 0, network_far = 0;          // bytes sent to other processes; of these, in groups that span nodes
  double collectives = 0, collectives_far = 0;  // rounds of all of them

  double product_flops() const;
  double flops() const { return product_flops() + attention; }
  Work& operator+=(const Work& other);
};
Work operator+(Work a, const Work& b);

// A tally of work, part by part.
class Cost {
 public:
  const Work& of(StepPart part) const { return parts_[static_cast<std::size_t>(part)]; }
  // Of one micro-batch there and back, with or without what is computed again.
  Work micro_batch() const;
  Work model() const { return of(StepPart::forward) + of(StepPart::backward); }
  Work total() const;

 private:
  friend class Exec;
  friend class CostScope;

  std::array<Work, step_part_count> parts_{};
  StepPart part_ = StepPart::none;
  double share_ = 1;  // of what is counted now
};

}  // namespace inlay::backend
