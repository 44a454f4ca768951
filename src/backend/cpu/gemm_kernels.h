#pragma once

#include "backend/cpu/gemm.h"

// The kernels behind gemm(), for it and for the tests, which hold every one of them against the same reference. All
// take M, N, K >= 1; alpha, beta and the workspace as in gemm(). A team of threads works where that pays, but inside
// of a team the calling thread alone.
namespace inlay::backend::cpu {

// A kernel as it exists per instruction set, in the tables of cmake/InlayKernels.cmake.
struct GemmKernel {
  void (*multiply)(const GemmArgs& args, DType in, DType out);
  std::size_t (*workspace_bytes)(const GemmArgs& args, DType in);
};

// Vector code, any dtype: operands are packed as fp32.
void vector_gemm(const GemmArgs& args, DType in, DType out);
std::size_t vector_workspace_bytes(const GemmArgs& args, DType in);

// fp32 through oneDNN, without a workspace.
void onednn_gemm(const GemmArgs& args);

// bf16 operands on AMX; only where amx_usable().
void amx_gemm(const GemmArgs& args, DType out);
std::size_t amx_workspace_bytes(const GemmArgs& args);

}  // namespace inlay::backend::cpu
