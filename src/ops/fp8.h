#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "backend/fp8_matmul.h"
#include "ops/check.h"

// Tensors [rows, cols] as operands of products in fp8: codes and scales, found from the tensor itself (never from one
// that came before), for products that sum over its columns, over its rows, or both, in one pass over memory.
namespace inlay::ops {

using backend::Fp8Forms;
using backend::Fp8Matrix;
using backend::Fp8Scaling;
using backend::Fp8Sums;

// What has a scale of its own.
enum class Fp8Recipe : std::uint8_t {
  block,   // 128 neighbours along the sum; squares of 128 of a weight, and of an input where rows are summed over
  row,     // a row of what is multiplied
  tensor,  // all of it
};
std::string_view name_of(Fp8Recipe recipe);
std::optional<Fp8Recipe> parse_fp8_recipe(std::string_view text);

struct Fp8Settings {
  Fp8Recipe recipe = Fp8Recipe::block;
  DType gradients = DType::e4m3;  // or e5m2: more range, less precision. Everything else is e4m3
  Fp8Sums sums = Fp8Sums::fp32;   // of a layer's outputs and of its inputs' gradients; those of weights are in fp32

  bool operator==(const Fp8Settings&) const = default;
};

enum class Fp8Role : std::uint8_t { input, gradient, weight };
enum class Fp8Use : std::uint8_t { rows, columns, both };  // which forms of a tensor

// Memory for a tensor's forms: scratch, or what stays.
Fp8Forms scratch_fp8(Exec& exec, std::string_view name, const Fp8Settings& settings, Fp8Role role, Fp8Use use,
                     std::int64_t rows, std::int64_t cols);
Fp8Forms keep_fp8(Exec& exec, MemoryClass memory, std::string_view name, const Fp8Settings& settings, Fp8Role role,
                  Fp8Use use, std::int64_t rows, std::int64_t cols);
// The same for so many tensors alike, evenly spaced, as products of groups want them.
std::vector<Fp8Forms> scratch_fp8_of_many(Exec& exec, std::string_view name, const Fp8Settings& settings, Fp8Role role,
                                          Fp8Use use, std::int64_t rows, std::int64_t cols, std::size_t count);
std::vector<Fp8Forms> keep_fp8_of_many(Exec& exec, MemoryClass memory, std::string_view name,
                                       const Fp8Settings& settings, Fp8Role role, Fp8Use use, std::int64_t rows,
                                       std::int64_t cols, std::size_t count);

// to = x, bf16 or fp32 [rows, cols], rows may be strided; every form that is there. A number becomes the code nearest
// to it times largest code / largest magnitude, ties to even; what is not finite makes its block NaN.
void quantise_fp8(Exec& exec, const Fp8Forms& to, ConstView x);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
namespace cpu {
void quantise_fp8(Exec& exec, const Fp8Forms& to, ConstView x);
}  // namespace cpu

namespace cuda {
void quantise_fp8(Exec& exec, const Fp8Forms& to, ConstView x);
}  // namespace cuda

}  // namespace inlay::ops
