#include "backend/cpu/isa.h"

#include <algorithm>
#include <string>

#include "core/environment.h"
#include "core/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace inlay::backend::cpu {

namespace {

#if defined(__x86_64__)

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

// Zeros where the processor does not know the leaf.
Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d) == 0) return {};
  return r;
}

constexpr bool has(unsigned word, std::initializer_list<int> bits) {
  return std::ranges::all_of(bits, [&](int bit) { return (word >> bit & 1u) != 0; });
}

// Which registers the operating system saves between threads; without it they must not be touched.
unsigned saved_registers() {
  constexpr int osxsave = 27;
  if (!has(cpuid(1, 0).c, {osxsave})) return 0;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Linux hands out tile registers on request, once for all threads of the process.
bool request_tiles() {
#if defined(__linux__)
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

Isa detect() {
  const Registers first = cpuid(1, 0), seventh = cpuid(7, 0), more = cpuid(7, 1), extended = cpuid(0x80000001, 0);
  const unsigned saved = saved_registers();
  constexpr int fma = 12, movbe = 22, avx = 28, f16c = 29;                                 // leaf 1, c
  constexpr int bmi1 = 3, avx2 = 5, bmi2 = 8;                                              // leaf 7, b
  constexpr int avx512f = 16, avx512dq = 17, avx512cd = 28, avx512bw = 30, avx512vl = 31;  // leaf 7, b
  constexpr int lzcnt = 5;                                                                 // leaf 0x80000001, c
  if (!has(saved, {1, 2}) || !has(first.c, {fma, movbe, avx, f16c}) || !has(seventh.b, {bmi1, avx2, bmi2}) ||
      !has(extended.c, {lzcnt})) {
    return Isa::baseline;
  }
  if (!has(saved, {5, 6, 7}) || !has(seventh.b, {avx512f, avx512dq, avx512cd, avx512bw, avx512vl})) return Isa::avx2;
  constexpr int avx512_bf16 = 5;               // leaf 7.1, a
  constexpr int amx_bf16 = 22, amx_tile = 24;  // leaf 7, d
  if (!has(more.a, {avx512_bf16})) return Isa::avx512;
  const bool tiles = has(seventh.d, {amx_bf16, amx_tile}) && has(saved, {17, 18}) && request_tiles();
  return tiles ? Isa::amx : Isa::avx512_bf16;
}

#else

Isa detect() { return Isa::baseline; }

#endif

Isa choose() {
  const std::optional<std::string> asked = environment("INLAY_CPU_ISA");
  const Isa best = best_isa();
  if (!asked) return best;
  const Isa isa = *std::ranges::find(all_isas, std::string_view(*asked), name_of);
  if (isa > best) {
    user_error("INLAY_CPU_ISA is \"{}\" in the environment, but this machine has at most {}", *asked, name_of(best));
  }
  return isa;
}

}  // namespace

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::baseline: return "baseline";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_bf16: return "avx512_bf16";
    case Isa::amx: return "amx";
  }
  INLAY_ASSERT(false, "instruction set {}", static_cast<int>(isa));
}

Isa best_isa() {
  static const Isa best = detect();
  return best;
}

Isa chosen_isa() {
  static const Isa chosen = choose();
  return chosen;
}

}  // namespace inlay::backend::cpu
