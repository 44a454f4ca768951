#include "ops/kernels.h"

// The table of one instruction set.
namespace inlay::ops::cpu {

#define INLAY_ENTRY(name) .name = cpu::name,
extern "C" const Kernels INLAY_TABLE = {INLAY_ATTENTION_KERNELS(INLAY_ENTRY)
#if !defined(__AMX_BF16__)
                                            INLAY_OTHER_KERNELS(INLAY_ENTRY)
#endif
};

}  // namespace inlay::ops::cpu
