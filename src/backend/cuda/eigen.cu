#include "backend/eigen.h"

#include <cusolverDn.h>

#include <algorithm>
#include <vector>

#include "backend/cuda/context_internal.h"
#include "backend/matmul_f64.h"

// Divide and conquer. cuSOLVER speaks column-major: a symmetric matrix reads the same, and the columns it returns are
// our rows.
namespace inlay::backend::cuda {

namespace {

void check(cusolverStatus_t status, std::string_view what) {
  if (status == CUSOLVER_STATUS_SUCCESS) return;
  throw InternalError(fmt::format("{}: cuSOLVER error {}", what, static_cast<int>(status)));
}

// cuSOLVER's handle, and the host memory that it asks for.
class Solver {
 public:
  explicit Solver(GpuContext& context) {
    check(cusolverDnCreate(&handle), "cusolverDnCreate");
    check(cusolverDnSetStream(handle, context.stream()), "cusolverDnSetStream");
    check(cusolverDnCreateParams(&params), "cusolverDnCreateParams");
  }
  ~Solver() {
    if (params != nullptr) cusolverDnDestroyParams(params);
    if (handle != nullptr) cusolverDnDestroy(handle);
  }
  Solver(const Solver&) = delete;
  Solver& operator=(const Solver&) = delete;

  cusolverDnHandle_t handle = nullptr;
  cusolverDnParams_t params = nullptr;
  std::vector<std::byte> host;
};

}  // namespace

namespace {

// Rows of length 1 + 2e-6 were seen for nearly singular matrices (cuSOLVER 12 in fp64). One Newton step towards the
// nearest orthonormal rows, Q = 1.5·Q − 0.5·(Q·Qᵀ)·Q, squares such an error; two leave rounding.
void polish(Exec& exec, View q, View workspace) {
  const std::int64_t n = q.dim(0);
  auto* const memory = static_cast<double*>(workspace.data());
  const View gram(memory, DType::f64, {n, n}), copy(memory + n * n, DType::f64, {n, n});
  const std::int64_t taken = (2 * n * n * static_cast<std::int64_t>(sizeof(double)) + 255) / 256 * 256;
  const View rest = workspace.slice_rows(taken, workspace.dim(0));  // the workspace is four times n², and more
  const auto rows = static_cast<std::size_t>(n);
  const std::size_t row_bytes = rows * sizeof(double), pitch = static_cast<std::size_t>(q.ld()) * sizeof(double);
  for (int step = 0; step < 2; ++step) {
    matmul_f64(exec, rest, gram, q, Transpose::no, q, Transpose::yes, 1.0, 0.0);
    cuda::check(cudaMemcpy2DAsync(copy.data(), row_bytes, q.data(), pitch, row_bytes, rows, cudaMemcpyDeviceToDevice,
                                  gpu(exec).stream()),
                "symmetric_eigen");
    matmul_f64(exec, rest, q, gram, Transpose::no, copy, Transpose::no, -0.5, 1.5);
  }
}

}  // namespace

void symmetric_eigen(Exec& exec, View values, View matrix, View workspace) {
  constexpr std::string_view op = "symmetric_eigen";
  constexpr cusolverEigMode_t vectors = CUSOLVER_EIG_MODE_VECTOR;
  constexpr cublasFillMode_t triangle = CUBLAS_FILL_MODE_LOWER;
  Solver& solver = gpu(exec).part<Solver>();
  const cudaDataType type = matrix.dtype() == DType::f64 ? CUDA_R_64F : CUDA_R_32F;
  const std::int64_t n = matrix.dim(0), ld = std::max(matrix.ld(), n);

  std::size_t device_bytes = 0, host_bytes = 0;
  check(cusolverDnXsyevd_bufferSize(solver.handle, solver.params, vectors, triangle, n, type, matrix.data(), ld, type,
                                    values.data(), type, &device_bytes, &host_bytes),
        op);
  // The solver's own word on how it ended lies at the workspace's end.
  constexpr std::size_t info_bytes = 256;
  const std::size_t usable = (workspace.bytes() - info_bytes) / 256 * 256;
  INLAY_ASSERT(device_bytes <= usable, "symmetric_eigen: cuSOLVER wants {} bytes for {}, planned were {}", device_bytes,
               matrix.shape().str(), usable);
  if (solver.host.size() < host_bytes) solver.host.resize(host_bytes);
  auto* const info = reinterpret_cast<int*>(static_cast<std::byte*>(workspace.data()) + usable);
  check(cusolverDnXsyevd(solver.handle, solver.params, vectors, triangle, n, type, matrix.data(), ld, type,
                         values.data(), type, workspace.data(), device_bytes, solver.host.data(), host_bytes, info),
        op);
  int ended = 0;
  copy_to_host(exec.cuda(), &ended, info, sizeof ended);
  INLAY_ASSERT(ended == 0, "symmetric_eigen: cuSOLVER's syevd of {} gave up (info {})", matrix.shape().str(), ended);
  if (matrix.dtype() == DType::f64 && n > 1) polish(exec, matrix, workspace);
}

}  // namespace inlay::backend::cuda
