#include "backend/matmul_f64.h"

#include <cblas.h>

#include <algorithm>

#include "backend/cpu/blas_threads.h"
#include "backend/cpu/threads.h"

namespace inlay::backend::cpu {

namespace {

// A matrix of one row may carry any stride, and one without columns any; the library wants what covers the row.
blasint leading(const ConstView& view) {
  return static_cast<blasint>(std::max({view.ld(), view.dim(1), std::int64_t{1}}));
}

CBLAS_TRANSPOSE order(Transpose transpose) { return transpose == Transpose::yes ? CblasTrans : CblasNoTrans; }

}  // namespace

void matmul_f64(View c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b, double alpha,
                double beta) {
  const std::int64_t terms = a.dim(transpose_a == Transpose::yes ? 0 : 1);
  constexpr double worth_a_team = 1e7;  // multiply-adds
  const double work = static_cast<double>(c.dim(0)) * static_cast<double>(c.dim(1)) * static_cast<double>(terms);
  use_blas_threads(work < worth_a_team ? 1 : threads());
  cblas_dgemm(CblasRowMajor, order(transpose_a), order(transpose_b), static_cast<blasint>(c.dim(0)),
              static_cast<blasint>(c.dim(1)), static_cast<blasint>(terms), alpha, a.as<double>(), leading(a),
              b.as<double>(), leading(b), beta, c.as<double>(), leading(c));
}

}  // namespace inlay::backend::cpu
