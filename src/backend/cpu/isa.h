#pragma once

#include <array>
#include <cstdint>
#include <string_view>

// The instruction sets that the CPU's kernels are compiled for, and which of them this process uses. Each contains the
// ones before it. The rest of the program is compiled for the first alone, so that it runs anywhere.
namespace inlay::backend::cpu {

enum class Isa : std::uint8_t {
  baseline,     // x86-64-v2; on other processors what all of their kind have
  avx2,         // x86-64-v3: 32-byte vectors, FMA
  avx512,       // x86-64-v4: 64-byte vectors
  avx512_bf16,  // and products of bf16
  amx,          // and of whole tiles of it
};

inline constexpr std::array all_isas = {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx};

// "baseline", "avx2", "avx512", "avx512_bf16", "amx": what INLAY_CPU_ISA takes.
std::string_view name_of(Isa isa);

// The largest that processor and kernel grant to this process.
Isa best_isa();

// What the kernels are chosen by: INLAY_CPU_ISA, read on the first call, or else the best. A UserError where the
// machine lacks the one asked for.
Isa chosen_isa();

}  // namespace inlay::backend::cpu
