#include "backend/eigen.h"

#include <lapacke.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "backend/cpu/blas_threads.h"
#include "backend/cpu/threads.h"

// Divide and conquer. LAPACK speaks column-major: a symmetric matrix reads the same, and the columns it returns are our
// rows.
namespace inlay::backend::cpu {

namespace {

std::int64_t real_workspace(std::int64_t n) { return 1 + 6 * n + 2 * n * n; }
std::int64_t integer_workspace(std::int64_t n) { return 3 + 5 * n; }

template <class Real>
lapack_int solve(View values, View matrix, View workspace) {
  const std::int64_t n = matrix.dim(0);
  constexpr std::int64_t limit = std::numeric_limits<lapack_int>::max();
  INLAY_ASSERT(real_workspace(n) <= limit && matrix.ld() <= limit, "symmetric_eigen: {} is too large for LAPACK",
               matrix.shape().str());
  const auto order = static_cast<lapack_int>(n), ld = static_cast<lapack_int>(std::max(matrix.ld(), n));
  const auto reals = static_cast<lapack_int>(real_workspace(n));
  const auto integers = static_cast<lapack_int>(integer_workspace(n));
  auto* const work = static_cast<Real*>(workspace.data());
  auto* const integer_work = reinterpret_cast<lapack_int*>(work + reals);
  constexpr auto driver = [] {
    if constexpr (std::is_same_v<Real, double>) {
      return LAPACKE_dsyevd_work;
    } else {
      return LAPACKE_ssyevd_work;
    }
  }();
  return driver(LAPACK_COL_MAJOR, 'V', 'L', order, matrix.as<Real>(), ld, values.as<Real>(), work, reals, integer_work,
                integers);
}

}  // namespace

std::int64_t eigen_workspace_bytes(DType dtype, std::int64_t n) {
  return real_workspace(n) * static_cast<std::int64_t>(size_of(dtype)) +
         integer_workspace(n) * static_cast<std::int64_t>(sizeof(lapack_int));
}

void symmetric_eigen(View values, View matrix, View workspace) {
  constexpr std::int64_t worth_a_team = 768;  // rows; below that a second thread gains nothing
  use_blas_threads(matrix.dim(0) < worth_a_team ? 1 : threads());
  const lapack_int info =
      matrix.dtype() == DType::f64 ? solve<double>(values, matrix, workspace) : solve<float>(values, matrix, workspace);
  INLAY_ASSERT(info == 0, "symmetric_eigen: LAPACK's syevd of {} gave up (info {})", matrix.shape().str(), info);
}

}  // namespace inlay::backend::cpu
