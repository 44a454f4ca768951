#pragma once

#include <functional>
#include <optional>
#include <span>

#include "ops/check.h"

// Matrices [rows, cols] that are kept in four or eight bits and opened, a few rows at a time, to be multiplied by.
//
//   nf4    bitsandbytes' quantize_4bit(quant_type="nf4", blocksize=64, compress_statistics=True): blocks of 64 numbers
//          of the flattened tensor, which may straddle rows, the last of which may be short. A code is the nearest of
//          16 numbers times the block's largest magnitude; two codes a byte, the first in the upper half. Those
//          magnitudes, less their mean, are in turn kept in 8 bits, in blocks of 256.
//   mxfp4  as GPT-OSS files have it: blocks of 32 along a row, two codes a byte with the lower half first, one byte of
//          exponent for each block. cols is a multiple of 32.
//   int8   bitsandbytes' int8_vectorwise_quant: 127 stands for the largest magnitude of the row.
//   fp8    e4m3, one fp32 scale for each row: its largest magnitude / 448.
//
// Codes, scales and opened numbers are bitsandbytes' bit for bit wherever its arithmetic is defined by IEEE's (its
// default kernels). Its CUDA kernels may take an approximate reciprocal of the largest magnitude; then a number within
// a unit in the last place of the middle of two codes may get the other one there; its CPU library looks up the 8-bit
// codes of scales in a coarse table instead of searching the nearest. Both are ours, to be read, all the same. The mean
// of the magnitudes is a sum, and bitsandbytes' is the fp32 sum of whichever device it ran on; ours is summed in fp64
// in a fixed order and rounded once, the same on both devices: it may differ by some units in the last place.
namespace inlay::ops {

enum class QuantFormat : std::uint8_t { nf4, mxfp4, int8, fp8 };
std::string_view name_of(QuantFormat format);
std::optional<QuantFormat> parse_quant_format(std::string_view text);

// What a quantised matrix consists of. Absent views are none of its format.
struct Quantised {
  QuantFormat format = QuantFormat::nf4;
  std::int64_t rows = 0, cols = 0;
  View codes;  // nf4: u8 [⌈rows · cols / 2⌉]; mxfp4: u8 [rows, cols / 2]; int8: i8 [rows, cols]; fp8: u8 [rows, cols]
  View scales;         // nf4: u8 [blocks]; mxfp4: u8 [rows, cols / 32]; int8, fp8: fp32 [rows]
  View nested_scales;  // nf4: fp32 [⌈blocks / 256⌉]
  View offset;         // nf4: fp32 [1], the mean of the blocks' scales
};

// Asks `take` for every tensor that a matrix of this shape needs, by name ("codes", "scales", "nested_scales",
// "offset"), always in the same order.
using TakeTensor = std::function<View(std::string_view name, DType dtype, Shape shape)>;
Quantised make_quantised(QuantFormat format, std::int64_t rows, std::int64_t cols, const TakeTensor& take);

// cols must be a multiple of this.
std::int64_t quant_column_multiple(QuantFormat format);
// Pieces of a matrix that are quantised one after the other begin at multiples of so many rows.
std::int64_t quant_row_step(QuantFormat format, std::int64_t cols);
// fp32 numbers that wait from the first piece to the end, for their mean; 0 where a piece is all that is needed.
std::int64_t quant_pending_scales(QuantFormat format, std::int64_t rows, std::int64_t cols);

// Rows [row, row + values' rows) of `to` = values, fp32, bf16 or fp16, contiguous and finite. pending: fp32
// [quant_pending_scales()], the same for all pieces; absent where that is 0.
void quantise_rows(Exec& exec, const Quantised& to, std::int64_t row, ConstView values, View pending = {});
// After the last piece: what waited becomes scales, nested_scales and offset. Nothing to do where nothing waited.
// `offset`, where given, is taken instead of the mean: whoever has bitsandbytes' own gets its bits.
void finish_quantising(Exec& exec, const Quantised& to, View pending, std::optional<float> offset = {});

// out = rows [row, row + n) of the matrices, rounded once. out is bf16 or fp32, contiguous, [n, cols], or [matrices, n,
// cols] where there are several (of one format and shape: a mixture's experts), which are opened by one kernel.
void dequantise_rows(Exec& exec, View out, std::span<const Quantised> matrices, std::int64_t row);
inline void dequantise_rows(Exec& exec, View out, const Quantised& matrix, std::int64_t row) {
  dequantise_rows(exec, out, std::span(&matrix, 1), row);
}

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
namespace cpu {
void quantise_rows(Exec& exec, const Quantised& to, std::int64_t row, ConstView values, View pending);
void finish_quantising(Exec& exec, const Quantised& to, View pending, std::optional<float> offset);
void dequantise_rows(Exec& exec, View out, std::span<const Quantised> matrices, std::int64_t row);
}  // namespace cpu

namespace cuda {
void quantise_rows(Exec& exec, const Quantised& to, std::int64_t row, ConstView values, View pending);
void finish_quantising(Exec& exec, const Quantised& to, View pending, std::optional<float> offset);
void dequantise_rows(Exec& exec, View out, std::span<const Quantised> matrices, std::int64_t row);
}  // namespace cuda

}  // namespace inlay::ops
