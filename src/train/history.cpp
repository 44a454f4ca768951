#include "train/history.h"

#include <cmath>

namespace inlay::train {

void History::add(double loss, double share, double now) {
  constexpr double parts = 20, longest = 60;
  sum_ += loss;
  ++count_;
  share_ = share;
  now_ = now;
  const bool next_part = std::floor(share * parts) > std::floor(last_share_ * parts);
  due_ = due_ || !any_ || share >= 1 || next_part || now - last_now_ >= longest;
}

double History::take() {
  const double mean = count_ > 0 ? sum_ / static_cast<double>(count_) : 0;
  sum_ = 0;
  count_ = 0;
  last_share_ = share_;
  last_now_ = now_;
  any_ = true;
  due_ = false;
  return mean;
}

}  // namespace inlay::train
