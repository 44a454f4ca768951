#pragma once

#include <cstdint>
#include <vector>

namespace inlay::parallel {

// Who has which rows of a tensor: contiguous ranges in the order of the ranks, some of them perhaps empty. The same on
// every rank, without asking the others.
class RowCut {
 public:
  // Shares that differ by one row at most.
  static RowCut even(std::int64_t rows, int ranks);
  // All rows belong to one rank.
  static RowCut whole(std::int64_t rows, int ranks, int owner);

  int ranks() const { return static_cast<int>(offsets_.size()) - 1; }
  std::int64_t rows() const { return offsets_.back(); }
  std::int64_t begin(int rank) const { return offsets_[static_cast<std::size_t>(rank)]; }
  std::int64_t end(int rank) const { return offsets_[static_cast<std::size_t>(rank) + 1]; }
  std::int64_t rows_of(int rank) const { return end(rank) - begin(rank); }
  bool uniform() const;                  // all shares are of one size
  int owner_of(std::int64_t row) const;  // the rank that has it

 private:
  explicit RowCut(std::vector<std::int64_t> offsets) : offsets_(std::move(offsets)) {}
  std::vector<std::int64_t> offsets_;
};

}  // namespace inlay::parallel
