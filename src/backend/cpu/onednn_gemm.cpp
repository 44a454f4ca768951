#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "backend/cpu/gemm_kernels.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/threads.h"
#include "core/environment.h"
#include "core/error.h"

namespace inlay::backend::cpu {

namespace {

// oneDNN believes the AMX feature bits and then trusts CPUID leaf 0x1D, which many virtual machines leave empty: it
// dies of an illegal instruction. Tiles have nothing to give to fp32, so it is never told of them. Beyond that it takes
// what our own kernels take. Whoever sets oneDNN's own variable knows better.
void cap_isa() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (environment("ONEDNN_MAX_CPU_ISA") || environment("DNNL_MAX_CPU_ISA")) return;
    const Isa isa = chosen_isa();
    dnnl_set_max_cpu_isa(isa == Isa::baseline ? dnnl_cpu_isa_sse41
                         : isa == Isa::avx2   ? dnnl_cpu_isa_avx2
                         : isa == Isa::avx512 ? dnnl_cpu_isa_avx512_core
                                              : dnnl_cpu_isa_avx512_core_bf16);
  });
}

void multiply(const GemmArgs& g, std::int64_t m0, std::int64_t m1, std::int64_t n0, std::int64_t n1) {
  const float* const a = static_cast<const float*>(g.a) + (g.transpose_a ? m0 : m0 * g.lda);
  const float* const b = static_cast<const float*>(g.b) + (g.transpose_b ? n0 * g.ldb : n0);
  float* const c = static_cast<float*>(g.c) + m0 * g.ldc + n0;
  const dnnl_status_t status = dnnl_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', m1 - m0, n1 - n0, g.k,
                                          g.alpha, a, g.lda, b, g.ldb, g.beta, c, g.ldc);
  INLAY_ASSERT(status == dnnl_success, "dnnl_sgemm of {} x {} x {} failed ({})", m1 - m0, n1 - n0, g.k,
               static_cast<int>(status));
}

struct Cut {
  std::int64_t m_blocks, n_blocks;
};

// Blocks large enough for oneDNN to be at its best, but where C is small, still several: a long sum over few rows and
// columns (the gradient of a hidden state through a large head) is work for every thread too.
Cut cut(std::int64_t m, std::int64_t n) {
  constexpr std::int64_t wanted = 8, fewest_rows = 64, fewest_cols = 128;
  std::int64_t rows = std::min<std::int64_t>(512, m), cols = std::min<std::int64_t>(1024, n);
  const auto blocks = [&] { return Cut{(m + rows - 1) / rows, (n + cols - 1) / cols}; };
  while (blocks().m_blocks * blocks().n_blocks < wanted) {
    const bool rows_divide = rows >= 2 * fewest_rows, cols_divide = cols >= 2 * fewest_cols;
    if (cols_divide && (cols >= rows || !rows_divide)) {
      cols = (cols + 1) / 2;
    } else if (rows_divide) {
      rows = (rows + 1) / 2;
    } else {
      break;
    }
  }
  return blocks();
}

}  // namespace

// oneDNN with several threads may share out the sum, and then its order is theirs. So C is cut into blocks that depend
// on the shape alone, and every block is one product on one thread.
void onednn_gemm(const GemmArgs& g) {
  cap_isa();
  const auto [m_blocks, n_blocks] = cut(g.m, g.n);
  const auto block = [&](std::int64_t i) {
    const std::int64_t m = i / n_blocks, n = i % n_blocks;
    multiply(g, g.m * m / m_blocks, g.m * (m + 1) / m_blocks, g.n * n / n_blocks, g.n * (n + 1) / n_blocks);
  };
  const std::int64_t blocks = m_blocks * n_blocks;
  std::atomic<std::int64_t> next = 0;
  run_team(static_cast<int>(std::min<std::int64_t>(threads(), blocks)), [&](int) {
    thread_local const bool alone = (omp_set_num_threads(1), true);  // oneDNN opens no team of its own
    (void)alone;
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < blocks;) block(i);
  });
}

}  // namespace inlay::backend::cpu
