#include "backend/cpu/gemm.h"

#include "backend/cpu/gemm_kernels.h"
#include "backend/cpu/parallel.h"
#include "core/environment.h"
#include "core/error.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace inlay::backend::cpu {

namespace {

#if defined(__x86_64__) && defined(__linux__)

bool cpu_has_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned avx512f = 1u << 16, avx512bw = 1u << 30, avx512vl = 1u << 31;
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
  const bool vectors = (b & avx512f) != 0 && (b & avx512bw) != 0 && (b & avx512vl) != 0;
  const bool tiles = (d & amx_bf16) != 0 && (d & amx_tile) != 0;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned avx512_bf16 = 1u << 5;
  return vectors && tiles && (a & avx512_bf16) != 0;
}

// Linux hands out tile registers on request, once for all threads of the process.
bool request_tiles() {
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

#else

bool cpu_has_tiles() { return false; }
bool request_tiles() { return false; }

#endif

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

}  // namespace

std::size_t gemm_workspace_bytes(const GemmArgs& args, DType in) {
  return in == DType::bf16 && amx_usable() ? amx_workspace_bytes(args) : vector_workspace_bytes(args, in);
}

bool amx_usable() {
  static const bool usable = environment("INLAY_CPU_ISA") != "vector" && cpu_has_tiles() && request_tiles();
  return usable;
}

void gemm(const GemmArgs& args, DType in, DType out) {
  check(in, out);
  if (trivial(args, out)) return;
  if (in == DType::bf16 && amx_usable()) return amx_gemm(args, out);
  // Where a product is small, oneDNN takes longer to think than to work.
  constexpr double worth_onednn = 1e6;
  const double terms = static_cast<double>(args.m) * static_cast<double>(args.n) * static_cast<double>(args.k);
  if (in == DType::f32 && terms >= worth_onednn) return onednn_gemm(args);
  vector_gemm(args, in, out);
}

}  // namespace inlay::backend::cpu
