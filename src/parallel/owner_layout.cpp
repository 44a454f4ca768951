#include "parallel/owner_layout.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace inlay::parallel {

std::vector<std::size_t> OwnerLayout::targets_of(int rank) const {
  std::vector<std::size_t> targets;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    if (owners[i] == rank) targets.push_back(i);
  }
  return targets;
}

OwnerLayout assign_owners(std::span<const double> costs, int ranks) {
  INLAY_ASSERT(ranks >= 1, "assign_owners: {} ranks", ranks);
  INLAY_ASSERT(std::all_of(costs.begin(), costs.end(), [](double cost) { return cost >= 0; }),
               "assign_owners: a cost is negative");
  std::vector<std::size_t> dearest_first(costs.size());
  std::iota(dearest_first.begin(), dearest_first.end(), std::size_t{0});
  std::stable_sort(dearest_first.begin(), dearest_first.end(),
                   [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  OwnerLayout layout{std::vector<int>(costs.size()), std::vector<double>(static_cast<std::size_t>(ranks), 0.0)};
  for (const std::size_t target : dearest_first) {
    const auto least = std::min_element(layout.loads.begin(), layout.loads.end());
    layout.owners[target] = static_cast<int>(least - layout.loads.begin());
    *least += costs[target];
  }
  return layout;
}

}  // namespace inlay::parallel
