#include "weights/finite.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/matmul_f64.h"

namespace inlay::weights {

using backend::Transpose;

// Row sums, as a product with ones: what is not finite spoils the sum of its row.
void require_finite(backend::Exec& exec, ConstView matrix, std::string_view name) {
  backend::ScratchScope scope(exec.arena());
  const View ones = exec.arena().scratch("ones", DType::f64, {matrix.dim(1), 1});
  const View sums = exec.arena().scratch("row sums", DType::f64, {matrix.dim(0), 1});
  exec.upload(ones, std::vector<double>(static_cast<std::size_t>(matrix.dim(1)), 1.0).data());
  backend::matmul_f64(exec, sums, matrix, Transpose::no, ones, Transpose::no);
  std::vector<double> values(static_cast<std::size_t>(matrix.dim(0)), 0.0);
  exec.download(values.data(), sums);
  if (!std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); })) {
    user_error("{} holds numbers that are not finite (NaN or infinity), and has no singular vectors", name);
  }
}

}  // namespace inlay::weights
