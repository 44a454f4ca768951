#pragma once

#include <cstdint>

namespace inlay::train {

// Which steps leave a line on a terminal, whose live line is overwritten by every step: enough to see the course of the
// loss by scrolling back, however fast the steps are. The first and the last do, each twentieth of the run, and one per
// minute.
class History {
 public:
  // A step and its loss; share: of the run that is done; now: seconds by a clock that never goes back.
  void add(double loss, double share, double now);
  bool due() const { return due_; }
  // The mean loss of the steps since the last line, which this one is from here on.
  double take();

 private:
  double sum_ = 0;
  std::int64_t count_ = 0;
  double share_ = 0, now_ = 0;            // of the last step
  double last_share_ = 0, last_now_ = 0;  // of the last line
  bool any_ = false, due_ = false;
};

}  // namespace inlay::train
