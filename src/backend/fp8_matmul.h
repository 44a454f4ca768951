#pragma once

#include <string_view>

#include "backend/matmul.h"

// Products of matrices in eight bits, with scales that are found anew for every tensor.
namespace inlay::backend {

// What has a scale of its own: a matrix, a row of it, 128 neighbours of a row, or a square of 128 by 128.
enum class Fp8Scaling : std::uint8_t { tensor, row, vector, square };
inline constexpr std::int64_t fp8_block = 128;

// A matrix [rows, cols] for products that sum over its columns: every element is the value of its code times its scale.
struct Fp8Matrix {
  Fp8Scaling scaling = Fp8Scaling::square;
  std::int64_t rows = 0, cols = 0;
  View codes;   // e4m3 or e5m2, of fp8_codes_shape(); zeros in the columns beyond the last, anything in the rows there
  View scales;  // fp32, of fp8_scales_shape()

  bool absent() const { return codes.absent(); }
};
Shape fp8_codes_shape(std::int64_t rows, std::int64_t cols);
// tensor [1]; row [rows]; vector [blocks of columns, rows]; square [blocks of rows, blocks of columns]: with rows up to
// a multiple of 16, and a square's blocks of columns up to one of 4, as the GPU's library wants them.
Shape fp8_scales_shape(Fp8Scaling scaling, std::int64_t rows, std::int64_t cols);

// A tensor [rows, cols] in fp8: for products that sum over its columns, for those that sum over its rows (transposed),
// or for both.
struct Fp8Forms {
  Fp8Matrix rows, columns;
};

// Where a GPU sums products of eight bits. Hopper's tensor cores keep about 14 bits; fp32 takes what they have summed
// out of them every so many terms, fast leaves it there. A CPU sums in fp32 either way.
enum class Fp8Sums : std::uint8_t { fp32, fast };

// C = alpha · A · Bᵀ + beta · C, row-major, fp32 accumulation; A is [M, K], B [N, K], C bf16 or fp32 [M, N], with rows
// that may be strided. At most one of A and B is scaled by squares, which then is B; where one is scaled by vectors or
// squares, so is the other by these, and sums are in fp32; otherwise both alike. beta is 0 or 1.
void fp8_matmul(Exec& exec, View c, const Fp8Matrix& a, const Fp8Matrix& b, MatmulScale scale = {},
                Fp8Sums sums = Fp8Sums::fp32);

// For whoever takes operands: that one is as described above, and that two are scaled by pieces that go together.
void check_fp8_operand(const Fp8Matrix& m, std::string_view op, std::string_view name);
void check_fp8_scaling(const Fp8Matrix& a, const Fp8Matrix& b, std::string_view op);

}  // namespace inlay::backend
