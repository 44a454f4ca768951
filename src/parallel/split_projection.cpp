#include "parallel/split_projection.h"

#include "backend/matmul.h"

namespace inlay::parallel {

using backend::matmul;
using backend::Transpose;

ColumnRange columns_of(std::int64_t width, int rank, int ranks) {
  INLAY_ASSERT(0 <= rank && rank < ranks && width >= 0, "columns_of: rank {} of {}, {} columns", rank, ranks, width);
  return {width * rank / ranks, width * (rank + 1) / ranks};
}

void project_split(backend::Exec& exec, View factor, ConstView basis, const AllReduce& all_reduce) {
  INLAY_ASSERT(factor.rank() == 2 && basis.rank() == 2 && factor.dim(1) == basis.dim(1),
               "project_split: a factor of {} and a basis of {}", factor.shape().str(), basis.shape().str());
  INLAY_ASSERT(factor.dtype() == DType::f32 && basis.dtype() == DType::f32,
               "project_split: a factor of {} and a basis of {}, expected fp32", name_of(factor.dtype()),
               name_of(basis.dtype()));
  backend::ScratchScope scope(exec.arena());
  const View coefficients = exec.arena().scratch("projection coefficients", DType::f32, {factor.dim(0), basis.dim(0)});
  // Without columns the sum is empty, and the coefficients are zero.
  matmul(exec, coefficients, factor, Transpose::no, basis, Transpose::yes);
  all_reduce(exec, coefficients);
  matmul(exec, factor, coefficients, Transpose::no, basis, Transpose::no, {.alpha = -1.0f, .beta = 1.0f});
}

}  // namespace inlay::parallel
