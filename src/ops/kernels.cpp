#include "ops/kernels.h"

#include "backend/cpu/isa.h"

namespace inlay::ops::cpu {

extern "C" {
extern const Kernels inlay_ops_baseline;
#if defined(__x86_64__)
extern const Kernels inlay_ops_avx2, inlay_ops_avx512, inlay_ops_amx;
#endif
}

namespace {

using backend::cpu::Isa;

Kernels of([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::baseline: return inlay_ops_baseline;
    case Isa::avx2: return inlay_ops_avx2;
    case Isa::avx512:
    case Isa::avx512_bf16: return inlay_ops_avx512;
    case Isa::amx: {
      Kernels result = inlay_ops_avx512;
#define INLAY_TAKE(name) result.name = inlay_ops_amx.name;
      INLAY_ATTENTION_KERNELS(INLAY_TAKE)
      return result;
    }
  }
#endif
  return inlay_ops_baseline;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels chosen = of(backend::cpu::chosen_isa());
  return chosen;
}

}  // namespace inlay::ops::cpu
