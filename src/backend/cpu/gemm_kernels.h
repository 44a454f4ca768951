#pragma once

#include "backend/cpu/gemm.h"

// The kernels behind gemm() and small_gemm(), for those two and for the tests, which hold every one of them against the
// same reference. All take M, N, K >= 1; alpha and beta as in gemm().
namespace inlay::backend::cpu {

// Who works on a product: the calling thread alone, or a team of OpenMP threads where that pays.
enum class Threads : bool { one, team };

// Vector code, any dtype: operands are packed as fp32.
void vector_gemm(const GemmArgs& args, DType in, DType out, Threads threads);

// fp32 through oneDNN.
void onednn_gemm(const GemmArgs& args, Threads threads);

// bf16 operands on AMX; only where amx_usable().
void amx_gemm(const GemmArgs& args, DType out, Threads threads);

// Configure and release the calling thread's tiles; only where amx_usable(). Calls nest: the outermost pair counts.
void amx_configure_tiles();
void amx_release_tiles();

}  // namespace inlay::backend::cpu
