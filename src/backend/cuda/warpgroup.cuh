#pragma once

// Hopper's products of a warpgroup (sm_90a). Programs that are compiled at run time include this too: no headers.
namespace inlay::backend::cuda::hopper {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Where an operand's boxes lie: lines of 128 bytes, swizzled as the copy engine does it (128B), eight lines a kilobyte.
// Contiguous along k: `stride` apart are groups of eight rows (columns of B); `leading` is not used.
// Contiguous along rows (columns of B): `stride` apart are groups of eight k, `leading` apart boxes of 64 rows.
__device__ __forceinline__ unsigned long long describe(unsigned address, int leading, int stride) {
  constexpr unsigned long long swizzle_128 = 1ull << 62;
  const auto field = [](unsigned bytes) { return static_cast<unsigned long long>((bytes & 0x3ffffu) >> 4); };
  return field(address) | field(static_cast<unsigned>(leading)) << 16 | field(static_cast<unsigned>(stride)) << 32 |
         swizzle_128;
}

// Products run beside the threads: between begin_products() and await_products() nobody may touch the sums, or a left
// operand that is in registers.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all but the last `pending` ended batches are done.
template <int pending>
__device__ __forceinline__ void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// Products work on registers behind the compiler's back: it must not move them about in between.
template <int count>
__device__ __forceinline__ void pin(float (&d)[count][4]) {
#pragma unroll
  for (int i = 0; i < 4 * count; ++i) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}
// What ordinary stores wrote to shared memory is there for the copy engine and the tensor cores.
__device__ __forceinline__ void publish_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// d [64, 8 · count] = or += A [64, 16] · B [16, 8 · count], bf16; A from shared memory or from registers. transpose: 1
// where the operand is contiguous along its rows (columns of B) instead of k. Thread t of the warpgroup holds in
// d[j][i] row 16 (t / 32) + t % 32 / 4 + 8 (i / 2) and column 8 j + 2 (t % 4) + i % 2.
//
// The instruction names every register, so each width is a function of its own; these write them.
#define INLAY_NUMBERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define INLAY_NUMBERS_32                                                                                 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define INLAY_NUMBERS_48 \
  INLAY_NUMBERS_32       \
  ", "                   \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define INLAY_NUMBERS_60 \
  INLAY_NUMBERS_48       \
  ", "                   \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59"
#define INLAY_NUMBERS_64 \
  INLAY_NUMBERS_48       \
  ", "                   \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define INLAY_NUMBERS_120                                                                                \
  INLAY_NUMBERS_64                                                                                       \
  ", "                                                                                                   \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, "   \
  "%103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119"
#define INLAY_NUMBERS_128 \
  INLAY_NUMBERS_120       \
  ", "                    \
  "%120, %121, %122, %123, %124, %125, %126, %127"
#define INLAY_SUMS_1(access, d, j) access(d[j][0]), access(d[j][1]), access(d[j][2]), access(d[j][3])
#define INLAY_SUMS_2(access, d, j) INLAY_SUMS_1(access, d, j), INLAY_SUMS_1(access, d, (j) + 1)
#define INLAY_SUMS_4(access, d, j) INLAY_SUMS_2(access, d, j), INLAY_SUMS_2(access, d, (j) + 2)
#define INLAY_SUMS_8(access, d, j) INLAY_SUMS_4(access, d, j), INLAY_SUMS_4(access, d, (j) + 4)
#define INLAY_SUMS_12(access, d, j) INLAY_SUMS_8(access, d, j), INLAY_SUMS_4(access, d, (j) + 8)
#define INLAY_SUMS_15(access, d, j)                                                                \
  INLAY_SUMS_8(access, d, j), INLAY_SUMS_4(access, d, (j) + 8), INLAY_SUMS_2(access, d, (j) + 12), \
      INLAY_SUMS_1(access, d, (j) + 14)
#define INLAY_SUMS_16(access, d, j) INLAY_SUMS_8(access, d, j), INLAY_SUMS_8(access, d, (j) + 8)
#define INLAY_SUMS_30(access, d, j)                                                                  \
  INLAY_SUMS_16(access, d, j), INLAY_SUMS_8(access, d, (j) + 16), INLAY_SUMS_4(access, d, (j) + 24), \
      INLAY_SUMS_2(access, d, (j) + 28)
#define INLAY_SUMS_32(access, d, j) INLAY_SUMS_16(access, d, j), INLAY_SUMS_16(access, d, (j) + 16)

// adds: "0" or "1", and access "=f" or "+f" accordingly; operands: the numbers of what follows the sums.
#define INLAY_WGMMA_OF(types, columns, count, numbers, access, adds, operands, ...)                                   \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " adds ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns types \
               " {" numbers "}, " operands ";\n}\n"                                                                   \
               : INLAY_SUMS_##count(access, d, 0)                                                                     \
               : __VA_ARGS__)
#define INLAY_WGMMA(...) INLAY_WGMMA_OF("k16.f32.bf16.bf16", __VA_ARGS__)

#define INLAY_WGMMA_SHARED(name, columns, count, numbers, access, adds, operands)                                     \
  template <int transpose_a, int transpose_b>                                                                         \
  __device__ __forceinline__ void name(float(&d)[count][4], unsigned long long a, unsigned long long b) {             \
    INLAY_WGMMA(columns, count, numbers, access, adds, operands, "l"(a), "l"(b), "n"(transpose_a), "n"(transpose_b)); \
  }
// Of fp8: [64, 32] · [32, 8 · count], both contiguous along k; A e4m3 or e5m2, B e4m3.
#define INLAY_WGMMA_FP8(name, columns, count, numbers, access, adds, operands)                              \
  template <bool e5m2>                                                                                      \
  __device__ __forceinline__ void name(float(&d)[count][4], unsigned long long a, unsigned long long b) {   \
    if constexpr (e5m2) {                                                                                   \
      INLAY_WGMMA_OF("k32.f32.e5m2.e4m3", columns, count, numbers, access, adds, operands, "l"(a), "l"(b)); \
    } else {                                                                                                \
      INLAY_WGMMA_OF("k32.f32.e4m3.e4m3", columns, count, numbers, access, adds, operands, "l"(a), "l"(b)); \
    }                                                                                                       \
  }
#define INLAY_WGMMA_REGISTERS(columns, count, numbers, operands)                                                  \
  template <int transpose_b>                                                                                      \
  __device__ __forceinline__ void wgmma(float(&d)[count][4], const unsigned(&a)[4], unsigned long long b) {       \
    INLAY_WGMMA(columns, count, numbers, "+f", "1", operands, "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), \
                "n"(transpose_b));                                                                                \
  }

INLAY_WGMMA_SHARED(wgmma_first, "32", 4, INLAY_NUMBERS_16, "=f", "0", "%16, %17, adds, 1, 1, %18, %19")
INLAY_WGMMA_SHARED(wgmma_first, "64", 8, INLAY_NUMBERS_32, "=f", "0", "%32, %33, adds, 1, 1, %34, %35")
INLAY_WGMMA_SHARED(wgmma_first, "128", 16, INLAY_NUMBERS_64, "=f", "0", "%64, %65, adds, 1, 1, %66, %67")
INLAY_WGMMA_SHARED(wgmma, "32", 4, INLAY_NUMBERS_16, "+f", "1", "%16, %17, adds, 1, 1, %18, %19")
INLAY_WGMMA_SHARED(wgmma, "64", 8, INLAY_NUMBERS_32, "+f", "1", "%32, %33, adds, 1, 1, %34, %35")
INLAY_WGMMA_SHARED(wgmma, "128", 16, INLAY_NUMBERS_64, "+f", "1", "%64, %65, adds, 1, 1, %66, %67")
INLAY_WGMMA_SHARED(wgmma, "240", 30, INLAY_NUMBERS_120, "+f", "1", "%120, %121, adds, 1, 1, %122, %123")
INLAY_WGMMA_SHARED(wgmma, "256", 32, INLAY_NUMBERS_128, "+f", "1", "%128, %129, adds, 1, 1, %130, %131")
INLAY_WGMMA_FP8(wgmma_fp8_first, "120", 15, INLAY_NUMBERS_60, "=f", "0", "%60, %61, adds, 1, 1")
INLAY_WGMMA_FP8(wgmma_fp8_first, "128", 16, INLAY_NUMBERS_64, "=f", "0", "%64, %65, adds, 1, 1")
INLAY_WGMMA_FP8(wgmma_fp8, "120", 15, INLAY_NUMBERS_60, "+f", "1", "%60, %61, adds, 1, 1")
INLAY_WGMMA_FP8(wgmma_fp8, "128", 16, INLAY_NUMBERS_64, "+f", "1", "%64, %65, adds, 1, 1")
INLAY_WGMMA_FP8(wgmma_fp8, "240", 30, INLAY_NUMBERS_120, "+f", "1", "%120, %121, adds, 1, 1")
INLAY_WGMMA_FP8(wgmma_fp8, "256", 32, INLAY_NUMBERS_128, "+f", "1", "%128, %129, adds, 1, 1")
INLAY_WGMMA_REGISTERS("64", 8, INLAY_NUMBERS_32, "{%32, %33, %34, %35}, %36, adds, 1, 1, %37")
INLAY_WGMMA_REGISTERS("96", 12, INLAY_NUMBERS_48, "{%48, %49, %50, %51}, %52, adds, 1, 1, %53")
INLAY_WGMMA_REGISTERS("128", 16, INLAY_NUMBERS_64, "{%64, %65, %66, %67}, %68, adds, 1, 1, %69")
INLAY_WGMMA_REGISTERS("256", 32, INLAY_NUMBERS_128, "{%128, %129, %130, %131}, %132, adds, 1, 1, %133")

#undef INLAY_NUMBERS_16
#undef INLAY_NUMBERS_32
#undef INLAY_NUMBERS_48
#undef INLAY_NUMBERS_60
#undef INLAY_NUMBERS_64
#undef INLAY_NUMBERS_120
#undef INLAY_NUMBERS_128
#undef INLAY_SUMS_1
#undef INLAY_SUMS_2
#undef INLAY_SUMS_4
#undef INLAY_SUMS_8
#undef INLAY_SUMS_12
#undef INLAY_SUMS_15
#undef INLAY_SUMS_16
#undef INLAY_SUMS_30
#undef INLAY_SUMS_32
#undef INLAY_WGMMA
#undef INLAY_WGMMA_OF
#undef INLAY_WGMMA_FP8
#undef INLAY_WGMMA_SHARED
#undef INLAY_WGMMA_REGISTERS

}  // namespace inlay::backend::cuda::hopper
