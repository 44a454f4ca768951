#include "parallel/row_cut.h"

#include "core/error.h"

namespace inlay::parallel {

RowCut RowCut::even(std::int64_t rows, int ranks) {
  INLAY_ASSERT(rows >= 0 && ranks >= 1, "a cut of {} rows for {} ranks", rows, ranks);
  std::vector<std::int64_t> offsets;
  for (int rank = 0; rank <= ranks; ++rank) offsets.push_back(rows * rank / ranks);
  return RowCut(std::move(offsets));
}

RowCut RowCut::whole(std::int64_t rows, int ranks, int owner) {
  INLAY_ASSERT(rows >= 0 && 0 <= owner && owner < ranks, "a cut of {} rows for rank {} of {}", rows, owner, ranks);
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(ranks) + 1, 0);
  for (int rank = owner + 1; rank <= ranks; ++rank) offsets[static_cast<std::size_t>(rank)] = rows;
  return RowCut(std::move(offsets));
}

int RowCut::owner_of(std::int64_t row) const {
  INLAY_ASSERT(0 <= row && row < rows(), "row {} of {}", row, rows());
  int rank = 0;
  while (end(rank) <= row) ++rank;
  return rank;
}

bool RowCut::uniform() const {
  for (int rank = 1; rank < ranks(); ++rank) {
    if (rows_of(rank) != rows_of(0)) return false;
  }
  return true;
}

}  // namespace inlay::parallel
