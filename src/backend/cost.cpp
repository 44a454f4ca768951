#include "backend/cost.h"

#include <numeric>

namespace inlay::backend {

double Work::product_flops() const { return std::accumulate(products.begin(), products.end(), 0.0); }

Work& Work::operator+=(const Work& other) {
  for (std::size_t i = 0; i < products.size(); ++i) products[i] += other.products[i];
  for (double Work::*kind :
       {&Work::attention, &Work::bytes, &Work::host_bytes, &Work::to_device, &Work::to_host, &Work::to_disk,
        &Work::from_disk, &Work::network, &Work::network_far, &Work::collectives, &Work::collectives_far}) {
    this->*kind += other.*kind;
  }
  return *this;
}

Work operator+(Work a, const Work& b) { return a += b; }

Work Cost::micro_batch() const { return model() + of(StepPart::recompute); }

Work Cost::total() const {
  Work sum;
  for (const Work& part : parts_) sum += part;
  return sum;
}

}  // namespace inlay::backend
