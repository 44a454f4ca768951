#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "ops/quant_codes.h"
#include "ops/quantised.h"
#include "ops/rows.h"

namespace inlay::ops::cpu {

namespace {

using backend::cpu::i32v;
using backend::cpu::u32v;
using u8v = std::uint8_t __attribute__((vector_size(lanes)));

template <class Body>
void with_source(DType dtype, const Body& body) {
  if (dtype == DType::f16) return body(f16{});
  with_activation(dtype, body);
}

f32v magnitude(f32v x) { return (f32v)((u32v)x & 0x7fffffffu); }

// Sixteen numbers to look up.
struct Table {
  explicit Table(const std::array<float, 16>& values) {
    for (std::int64_t i = 0; i < 16 / lanes; ++i) part[i] = backend::cpu::load(values.data() + i * lanes);
  }
  // The one for each index; only the lower four bits of an index count.
  f32v operator[](u32v index) const {
#if defined(__AVX512F__)
    return (f32v)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)index, (__m512)part[0]);
#elif defined(__AVX2__)
    const auto low = (f32v)_mm256_permutevar8x32_ps((__m256)part[0], (__m256i)index);
    const auto high = (f32v)_mm256_permutevar8x32_ps((__m256)part[1], (__m256i)index);
    return (i32v)(index << 28) < 0 ? high : low;
#else
    f32v result;
    for (std::int64_t i = 0; i < lanes; ++i) result[i] = part[index[i] % 16 / lanes][index[i] % lanes];
    return result;
#endif
  }
  f32v part[16 / lanes];
};

// A vector of codes of half a byte each, in the lower four bits of their lanes.
template <bool upper_first>
u32v spread_pairs(const std::uint8_t* bytes) {
#if defined(__AVX512F__)  // a byte goes to two neighbours
  std::uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  using backend::cpu::u64v;
  const u64v byte = ((word + u64v{}) >> u64v{0, 8, 16, 24, 32, 40, 48, 56}) & 0xffu;
  return (u32v)(upper_first ? byte >> 4 | byte << 32 : byte | byte << 28);
#else
  std::uint32_t word = 0;
  std::memcpy(&word, bytes, lanes / 2);
  constexpr auto shifts = backend::cpu::each_lane<u32v>([](std::int64_t i) { return 4 * (upper_first ? i ^ 1 : i); });
  return (word + u32v{}) >> shifts;
#endif
}

// A product that the compiler must not fuse with the sum it is part of.
float rounded_product(float a, float b) { return static_cast<float>(double{a} * double{b}); }

// ---- opening --------------------------------------------------------------------------------------------------------

// What differs between the formats of two codes a byte.
struct Nf4 {
  static constexpr std::int64_t block = quant::nf4_block;
  static constexpr const auto& values = quant::nf4_values;
  static constexpr bool upper_first = true;
  static float scale(const Quantised& q, std::int64_t block) {
    const float coded = quant::dynamic_values[q.scales.as<std::uint8_t>()[block]];
    return rounded_product(coded, q.nested_scales.as<float>()[block / quant::nested_block]) + *q.offset.as<float>();
  }
};
struct Mxfp4 {
  static constexpr std::int64_t block = quant::mxfp4_block;
  static constexpr const auto& values = quant::e2m1_values;
  static constexpr bool upper_first = false;
  static float scale(const Quantised& q, std::int64_t block) {
    return quant::e8m0_value(q.scales.as<std::uint8_t>()[block]);
  }
};

// to[0, end - begin) = numbers [begin, end) of the flattened matrix.
template <class Format, class T>
void open_pairs(T* to, const Quantised& q, std::int64_t begin, std::int64_t end) {
  const auto* codes = q.codes.as<std::uint8_t>();
  const Table table(Format::values);
  to -= begin;
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t stop = std::min(end, (i / Format::block + 1) * Format::block);
    const float scale = Format::scale(q, i / Format::block);
    const auto open_one = [&](std::int64_t at) {
      const bool upper = (at % 2 == 0) == Format::upper_first;
      to[at] = T(Format::values[codes[at / 2] >> (upper ? 4 : 0) & 15] * scale);
    };
    for (; i < stop && i % lanes != 0; ++i) open_one(i);
    for (; i + lanes <= stop; i += lanes) {
      const u32v index = spread_pairs<Format::upper_first>(codes + i / 2);
      store(to + i, table[index] * scale, Whole{});
    }
    for (; i < stop; ++i) open_one(i);
  }
}

// A vector of bytes, each in its lane.
u32v spread_bytes(const std::byte* bytes) {
  u8v some;
  std::memcpy(&some, bytes, sizeof some);
#if defined(__AVX512F__)  // one instruction, where the compiler's conversion takes many
  return (u32v)_mm512_maskz_cvtepu8_epi32(0xffff, (__m128i)some);
#elif defined(__AVX2__)
  return (u32v)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)some));
#else
  return __builtin_convertvector(some, u32v);
#endif
}
f32v int8_numbers(const std::byte* codes) {
  return (f32v)((spread_bytes(codes) ^ 0x80u) | 0x4b000000u) - 8388736.0f;  // 2^23 + 128 + code, as fp32
}
f32v fp8_numbers(const std::byte* codes) {
  const u32v code = spread_bytes(codes), magnitude = code & 0x7fu;
  const f32v small = ((f32v)(magnitude | 0x4b000000u) - 0x1p23f) * 0x1p-9f;
  u32v bits = (i32v)magnitude < 8 ? (u32v)small : (magnitude << 20) + (120u << 23);
  bits = (i32v)magnitude == 0x7f ? bits | 0x7fc00000u : bits;
  return (f32v)(bits | (code & 0x80u) << 24);
}

// The same for formats of a byte a code and a scale a row.
template <QuantFormat format, class T>
void open_bytes(T* to, const Quantised& q, std::int64_t begin, std::int64_t end) {
  const auto* codes = static_cast<const std::byte*>(q.codes.data());
  const auto* scales = q.scales.as<float>();
  to -= begin;
  const auto open = [&](const std::byte* from, float scale) {
    if constexpr (format == QuantFormat::int8) return int8_numbers(from) * scale * quant::int8_step;
    return fp8_numbers(from) * scale;
  };
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t row = i / q.cols, stop = std::min(end, (row + 1) * q.cols);
    for (; i + lanes <= stop; i += lanes) store(to + i, open(codes + i, scales[row]), Whole{});
    if (i < stop) {
      std::byte some[lanes] = {};
      std::memcpy(some, codes + i, static_cast<std::size_t>(stop - i));
      store(to + i, open(some, scales[row]), Part{stop - i});
      i = stop;
    }
  }
}

template <class T>
void open_stretch(T* to, const Quantised& q, std::int64_t begin, std::int64_t end) {
  switch (q.format) {
    case QuantFormat::nf4: return open_pairs<Nf4>(to, q, begin, end);
    case QuantFormat::mxfp4: return open_pairs<Mxfp4>(to, q, begin, end);
    case QuantFormat::int8: return open_bytes<QuantFormat::int8>(to, q, begin, end);
    case QuantFormat::fp8: return open_bytes<QuantFormat::fp8>(to, q, begin, end);
  }
}

// ---- quantising -----------------------------------------------------------------------------------------------------

// Up to 64 numbers as fp32, the rest of them zero, and their largest magnitude.
struct Block {
  f32v x[quant::nf4_block / lanes] = {};
  float absmax = 0;

  template <class T>
  Block(const T* from, std::int64_t count) {
    each_vector(0, count, [&](std::int64_t i, auto part) { x[i / lanes] = load(from + i, part); });
    f32v largest{};
    for (const f32v& v : x) largest = backend::cpu::maximum(largest, magnitude(v));
    absmax = backend::cpu::largest(largest);
  }
};

// How many of NF4's midpoints lie below, in bytes.
u8v nf4_codes(f32v x) {
  i32v code{};
  for (const float midpoint : quant::nf4_midpoints) code -= x > splat(midpoint);
  return __builtin_convertvector(code, u8v);
}

template <class T>
void quantise_nf4(const Quantised& to, std::int64_t first, const T* from, std::int64_t count, float* pending) {
  auto* codes = to.codes.as<std::uint8_t>() + first / 2;
  pending += first / quant::nf4_block;
  parallel_for((count + quant::nf4_block - 1) / quant::nf4_block, 256, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t at = b * quant::nf4_block, size = std::min(quant::nf4_block, count - at);
      const Block block(from + at, size);
      const float inverse = quant::nf4_inverse(block.absmax);
      std::uint8_t wide[quant::nf4_block];
      for (std::int64_t v = 0; v < quant::nf4_block / lanes; ++v) {
        const u8v some = nf4_codes(block.x[v] * inverse);
        std::memcpy(wide + v * lanes, &some, sizeof some);
      }
      for (std::int64_t i = 0; i < (size + 1) / 2; ++i) {
        codes[at / 2 + i] = static_cast<std::uint8_t>(wide[2 * i] << 4 | wide[2 * i + 1]);
      }
      pending[b] = block.absmax;
    }
  });
}

template <class T>
void quantise_mxfp4(const Quantised& to, std::int64_t first, const T* from, std::int64_t count) {
  auto* codes = to.codes.as<std::uint8_t>() + first / 2;
  auto* scales = to.scales.as<std::uint8_t>() + first / quant::mxfp4_block;
  parallel_for(count / quant::mxfp4_block, 512, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const Block block(from + b * quant::mxfp4_block, quant::mxfp4_block);
      scales[b] = quant::e8m0_of(block.absmax);
      const float inverse = quant::e8m0_inverse(scales[b]);
      float x[quant::mxfp4_block];
      std::memcpy(x, block.x, sizeof x);
      std::uint8_t* const bytes = codes + b * quant::mxfp4_block / 2;
      for (std::int64_t i = 0; i < quant::mxfp4_block / 2; ++i) {
        bytes[i] = static_cast<std::uint8_t>(quant::e2m1_code(x[2 * i] * inverse) |
                                             quant::e2m1_code(x[2 * i + 1] * inverse) << 4);
      }
    }
  });
}

template <class T>
void quantise_by_row(const Quantised& to, std::int64_t row, const T* from, std::int64_t rows) {
  const std::int64_t cols = to.cols;
  auto* codes = static_cast<std::uint8_t*>(to.codes.data()) + row * cols;
  float* scales = to.scales.as<float>() + row;
  parallel_for(rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* x = from + r * cols;
      std::uint8_t* code = codes + r * cols;
      f32v largest{};
      each_vector(0, cols, [&](std::int64_t i, auto part) {
        largest = backend::cpu::maximum(largest, magnitude(load(x + i, part)));
      });
      const float absmax = backend::cpu::largest(largest);
      if (to.format == QuantFormat::int8) {
        scales[r] = absmax;
        const float inverse = quant::int8_inverse(absmax);
        for (std::int64_t i = 0; i < cols; ++i) {
          code[i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(std::rint(static_cast<float>(x[i]) * inverse)));
        }
      } else {
        scales[r] = absmax / fp8::e4m3_largest;
        for (std::int64_t i = 0; i < cols; ++i) {
          code[i] = scales[r] > 0 ? fp8::e4m3_code(static_cast<float>(x[i]) / scales[r]) : 0;
        }
      }
    }
  });
}

// In fp64: every 1024th to one of 1024 sums, and these in a tree, as the GPU does it.
float mean_of(const float* values, std::int64_t count) {
  constexpr std::int64_t ways = 1024;
  double sums[ways] = {};
  for (std::int64_t i = 0; i < count; ++i) sums[i % ways] += double{values[i]};
  for (std::int64_t width = ways / 2; width > 0; width /= 2) {
    for (std::int64_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return static_cast<float>(sums[0] / static_cast<double>(count));
}

}  // namespace

void dequantise_rows(Exec&, View out, std::span<const Quantised> matrices, std::int64_t row) {
  const std::int64_t cols = matrices.front().cols, rows = out.dim(out.rank() - 2);
  const std::int64_t first = row * cols, last = first + rows * cols;
  // In stretches that begin at whole blocks of any format.
  constexpr std::int64_t stretch = 8192;
  const std::int64_t skipped = first / stretch, stretches = (last + stretch - 1) / stretch - skipped;
  with_activation(out.dtype(), [&](auto type) {
    auto* to = out.as<decltype(type)>();
    parallel_for(static_cast<std::int64_t>(matrices.size()) * stretches, 2, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t matrix = item / stretches, at = (item % stretches + skipped) * stretch;
        const std::int64_t from = std::max(at, first), until = std::min(at + stretch, last);
        open_stretch(to + matrix * rows * cols + (from - first), matrices[static_cast<std::size_t>(matrix)], from,
                     until);
      }
    });
  });
}

void quantise_rows(Exec&, const Quantised& to, std::int64_t row, ConstView values, View pending) {
  with_source(values.dtype(), [&](auto type) {
    const auto* from = values.as<decltype(type)>();
    switch (to.format) {
      case QuantFormat::nf4: return quantise_nf4(to, row * to.cols, from, values.size(), pending.as<float>());
      case QuantFormat::mxfp4: return quantise_mxfp4(to, row * to.cols, from, values.size());
      case QuantFormat::int8:
      case QuantFormat::fp8: return quantise_by_row(to, row, from, values.dim(0));
    }
  });
}

void finish_quantising(Exec&, const Quantised& to, View pending, std::optional<float> given) {
  const std::int64_t count = pending.size();
  const float* values = pending.as<float>();
  float* offset = to.offset.as<float>();
  if (!given) *offset = mean_of(values, count);
  auto* codes = to.scales.as<std::uint8_t>();
  float* nested = to.nested_scales.as<float>();
  parallel_for(to.nested_scales.size(), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t at = b * quant::nested_block, stop = std::min(count, at + quant::nested_block);
      float absmax = 0;
      for (std::int64_t i = at; i < stop; ++i) absmax = std::max(absmax, std::fabs(values[i] - *offset));
      nested[b] = absmax;
      const float inverse = quant::nested_inverse(absmax);
      for (std::int64_t i = at; i < stop; ++i) {
        codes[i] = quant::dynamic_code((values[i] - *offset) * inverse, quant::dynamic_midpoints.data());
      }
    }
  });
}

}  // namespace inlay::ops::cpu
