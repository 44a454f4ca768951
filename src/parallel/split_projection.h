#pragma once

#include <functional>

#include "backend/exec.h"

// Projection where a single matrix is too large for one rank. U is split along N and V along M: along the dimension
// that the products contract over. A rank's share of a coefficient matrix is then a part of a sum, and an all-reduce of
// the small coefficients is exact. (Split along their rank, every rank would hold coefficients of other rows and other
// directions: their sum is the coefficient of nothing.)
namespace inlay::parallel {

// Columns begin .. end of a matrix, the share of one rank.
struct ColumnRange {
  std::int64_t begin = 0, end = 0;
};

// Contiguous shares in the order of the ranks; their widths differ by one at most, and are 0 where ranks outnumber
// columns.
ColumnRange columns_of(std::int64_t width, int rank, int ranks);

// Replaces an fp32 matrix by its sum over all ranks. Called in a plan, too, to take its scratch.
using AllReduce = std::function<void(backend::Exec& exec, View sum)>;

// factor −= (factor · basisᵀ) · basis, for this rank's columns of both: factor fp32 [r, d], basis fp32 [k, d]. Rows are
// directions, and the whole basis' rows are orthonormal. Every rank calls it, those without columns as well, and each
// calls all_reduce once. Scratch: the coefficients, r × k.
void project_split(backend::Exec& exec, View factor, ConstView basis, const AllReduce& all_reduce);

}  // namespace inlay::parallel
