#include "backend/cpu/gemm.h"

#include "backend/cpu/gemm_kernels.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/parallel.h"
#include "core/error.h"

namespace inlay::backend::cpu {

extern "C" {
extern const GemmKernel inlay_backend_baseline;
#if defined(__x86_64__)
extern const GemmKernel inlay_backend_avx2, inlay_backend_avx512, inlay_backend_amx;
#endif
}

namespace {

const GemmKernel& vector_kernel() {
#if defined(__x86_64__)
  if (chosen_isa() >= Isa::avx512) return inlay_backend_avx512;
  if (chosen_isa() == Isa::avx2) return inlay_backend_avx2;
#endif
  return inlay_backend_baseline;
}

template <class T>
void scale_rows(const GemmArgs& g) {
  parallel_for(g.m, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      T* const row = static_cast<T*>(g.c) + i * g.ldc;
      for (std::int64_t j = 0; j < g.n; ++j) {
        row[j] = g.beta == 0.0f ? T{} : static_cast<T>(g.beta * static_cast<float>(row[j]));
      }
    }
  });
}

// C = beta · C: what is left of a product without terms.
void scale_only(const GemmArgs& g, DType out) {
  switch (out) {
    case DType::f32: return scale_rows<float>(g);
    case DType::bf16: return scale_rows<bf16>(g);
    default: return scale_rows<f16>(g);
  }
}

void check(DType in, DType out) {
  INLAY_ASSERT(in == DType::f32 || in == DType::bf16 || in == DType::f16, "gemm of {}", name_of(in));
  INLAY_ASSERT(out == in || out == DType::f32, "gemm of {} into {}", name_of(in), name_of(out));
}

// True where there is nothing to multiply; C is then done.
bool trivial(const GemmArgs& g, DType out) {
  if (g.m <= 0 || g.n <= 0) return true;
  if (g.k > 0 && g.alpha != 0.0f) return false;
  scale_only(g, out);
  return true;
}

bool onednn_is_faster([[maybe_unused]] const GemmArgs& g) {
#if defined(__x86_64__)
  // Where a product is small, oneDNN takes longer to think than to work.
  constexpr double worth_onednn = 1e6;
  if (static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k) < worth_onednn) return false;
  // With AVX2 it reads an operand whose rows run across the sum where it lies, and rows that are multiples of 2 KB
  // apart fall into the same few sets of the nearest cache: most models' widths are such, and half of the speed is
  // gone.
  constexpr std::int64_t apart = 2048 / sizeof(float);
  const bool strided = (g.transpose_a && g.lda % apart == 0) || (!g.transpose_b && g.ldb % apart == 0);
  return chosen_isa() != Isa::avx2 || !strided;
#else
  return false;  // elsewhere its products are plain code, which sums from first to last: slower and further off
#endif
}

}  // namespace

void vector_gemm(const GemmArgs& args, DType in, DType out) { vector_kernel().multiply(args, in, out); }
std::size_t vector_workspace_bytes(const GemmArgs& args, DType in) { return vector_kernel().workspace_bytes(args, in); }

#if defined(__x86_64__)

void amx_gemm(const GemmArgs& args, DType out) { inlay_backend_amx.multiply(args, DType::bf16, out); }
std::size_t amx_workspace_bytes(const GemmArgs& args) { return inlay_backend_amx.workspace_bytes(args, DType::bf16); }

#else

void amx_gemm(const GemmArgs&, DType) { INLAY_ASSERT(false, "this processor has no AMX"); }
std::size_t amx_workspace_bytes(const GemmArgs&) { return 0; }

#endif

std::size_t gemm_workspace_bytes(const GemmArgs& args, DType in) {
  return in == DType::bf16 && amx_usable() ? amx_workspace_bytes(args) : vector_workspace_bytes(args, in);
}

bool amx_usable() { return chosen_isa() == Isa::amx; }

void gemm(const GemmArgs& args, DType in, DType out) {
  check(in, out);
  if (trivial(args, out)) return;
  if (in == DType::bf16 && amx_usable()) return amx_gemm(args, out);
  if (in == DType::f32 && onednn_is_faster(args)) return onednn_gemm(args);
  vector_gemm(args, in, out);
}

}  // namespace inlay::backend::cpu
