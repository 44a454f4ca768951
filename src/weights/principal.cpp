#include "weights/principal.h"

#include <algorithm>
#include <vector>

#include "backend/eigen.h"
#include "ops/elementwise.h"
#include "weights/finite.h"
#include "weights/thin_svd.h"

namespace inlay::weights {

namespace {

void check(const PrincipalDirections& out, std::int64_t count, std::int64_t width) {
  ops::check_shape("principal", "energies", out.energies, {count});
  ops::check_shape("principal", "directions", out.directions, {count, width});
  for (const View& view : {out.energies, out.directions}) ops::check_dtype("principal", "a result", view, DType::f32);
}

}  // namespace

void principal_of_covariance(backend::Exec& exec, const PrincipalDirections& out, ConstView covariance,
                             std::string_view name) {
  const std::int64_t width = covariance.dim(0);
  ops::check_shape("principal_of_covariance", name, covariance, {width, width});
  ops::check_dtype("principal_of_covariance", name, covariance, DType::f32);
  check(out, width, width);
  backend::ScratchScope scope(exec.arena());
  const View matrix = exec.arena().scratch("covariance in fp64", DType::f64, covariance.shape());
  const View values = exec.arena().scratch("eigenvalues", DType::f64, {width});
  std::vector<double> energies(static_cast<std::size_t>(width), -1.0);
  // With a minus, so that eigenvalues that ascend are energies that descend.
  exec.upload(values, energies.data());
  ops::cast(exec, matrix, covariance);
  ops::scale_rows(exec, matrix, values);
  require_finite(exec, matrix, name);
  backend::symmetric_eigen(exec, values, matrix);
  ops::cast(exec, out.directions, matrix);
  exec.download(energies.data(), values);
  std::vector<float> rounded(energies.size());
  std::transform(energies.begin(), energies.end(), rounded.begin(),
                 [](double value) { return static_cast<float>(std::max(0.0, -value)); });
  exec.upload(out.energies, rounded.data());
}

// C = Xᵀ·X has the right singular vectors of X for eigenvectors, and the squares of its singular values.
std::int64_t principal_of_inputs(backend::Exec& exec, const PrincipalDirections& out, ConstView inputs,
                                 std::string_view name) {
  INLAY_ASSERT(inputs.rank() == 2 && inputs.dim(0) <= inputs.dim(1),
               "principal_of_inputs: {} is {}, expected [n, M] with n <= M", name, inputs.shape().str());
  check(out, inputs.dim(0), inputs.dim(1));
  backend::ScratchScope scope(exec.arena());
  const ThinSvd svd = thin_svd(exec, inputs, OpenDirections::drop, name);
  ops::cast(exec, out.directions, svd.v);
  exec.fill_zero(out.directions.slice_rows(svd.rank, inputs.dim(0)));
  std::vector<float> energies(svd.s.size());
  std::transform(svd.s.begin(), svd.s.end(), energies.begin(),
                 [](double sigma) { return static_cast<float>(sigma * sigma); });
  exec.upload(out.energies, energies.data());
  return svd.rank;
}

}  // namespace inlay::weights
