#include "backend/matmul_f64.h"

#include <cublas_v2.h>

#include <algorithm>

#include "backend/cuda/context_internal.h"

// cuBLAS speaks column-major. A row-major C is, read column-major, Cᵀ = op(B)ᵀ op(A)ᵀ; so B is handed over as the first
// operand and A as the second, and nothing is transposed in memory.
namespace inlay::backend::cuda {

namespace {

class Blas {
 public:
  explicit Blas(GpuContext& context) {
    check(cublasCreate(&handle), "cublasCreate");
    check(cublasSetStream(handle, context.stream()), "cublasSetStream");
  }
  ~Blas() {
    if (handle != nullptr) cublasDestroy(handle);
  }
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  cublasHandle_t handle = nullptr;
};

int leading(const ConstView& view) { return static_cast<int>(std::max({view.ld(), view.dim(1), std::int64_t{1}})); }

cublasOperation_t order(Transpose transpose) { return transpose == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N; }

}  // namespace

void matmul_f64(Exec& exec, View workspace, View c, ConstView a, Transpose transpose_a, ConstView b,
                Transpose transpose_b, double alpha, double beta) {
  const cublasHandle_t handle = gpu(exec).part<Blas>().handle;
  const std::int64_t terms = a.dim(transpose_a == Transpose::yes ? 0 : 1);
  // The plan's memory, for this call: cuBLAS would otherwise allocate beside the arena.
  check(cublasSetWorkspace(handle, workspace.data(), workspace.bytes()), "cublasSetWorkspace");
  check(cublasDgemm(handle, order(transpose_b), order(transpose_a), static_cast<int>(c.dim(1)),
                    static_cast<int>(c.dim(0)), static_cast<int>(terms), &alpha, b.as<double>(), leading(b),
                    a.as<double>(), leading(a), &beta, c.as<double>(), leading(c)),
        "matmul_f64");
}

}  // namespace inlay::backend::cuda
