#include "parallel/row_cut.h"

#include <gtest/gtest.h>

namespace inlay::parallel {
namespace {

TEST(ParallelRowCut, SharesAreContiguousAndDifferByOneRowAtMost) {
  for (const std::int64_t rows : {0, 1, 7, 64, 1000}) {
    for (const int ranks : {1, 2, 3, 8}) {
      const RowCut cut = RowCut::even(rows, ranks);
      EXPECT_EQ(cut.end(ranks - 1), rows);
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_GE(cut.rows_of(rank), rows / ranks);
        EXPECT_LE(cut.rows_of(rank), rows / ranks + 1);
        EXPECT_EQ(cut.begin(rank), rank == 0 ? 0 : cut.end(rank - 1));
      }
      EXPECT_EQ(cut.uniform(), rows % ranks == 0) << rows << " rows, " << ranks << " ranks";
    }
  }
}

TEST(ParallelRowCut, AWholeTensorBelongsToOneRank) {
  const RowCut cut = RowCut::whole(5, 3, 1);
  EXPECT_EQ(cut.ranks(), 3);
  EXPECT_EQ(cut.rows(), 5);
  EXPECT_EQ(cut.rows_of(0), 0);
  EXPECT_EQ(cut.rows_of(1), 5);
  EXPECT_EQ(cut.rows_of(2), 0);
  EXPECT_FALSE(cut.uniform());
  EXPECT_TRUE(RowCut::whole(5, 1, 0).uniform());
}

}  // namespace
}  // namespace inlay::parallel
