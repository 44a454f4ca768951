#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace inlay::parallel {

// Which rank owns which target of OSFT. A target is never split: its gradient is reduced to the owner, who projects,
// steps and rebuilds the weight, so that projection moves no bytes.
struct OwnerLayout {
  std::vector<int> owners;    // of each target
  std::vector<double> loads;  // of each rank: the cost of what it owns

  std::vector<std::size_t> targets_of(int rank) const;  // ascending
};

// Balances costs (FLOPs, none negative) over ranks, the dearest target first, each to the rank that has least. No rank
// then has more than another by more than one target's cost. The same on every rank, without asking the others: ties go
// to the earlier target and to the lower rank.
OwnerLayout assign_owners(std::span<const double> costs, int ranks);

}  // namespace inlay::parallel
