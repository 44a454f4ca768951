#include <cmath>

#include "backend/cpu/parallel.h"
#include "core/fp8.h"
#include "ops/fp8.h"

// A reference that rounds exactly as the GPU's kernels do, form by form.
namespace inlay::ops::cpu {

namespace {

using backend::fp8_block;

// The larger of a magnitude and that of x; a NaN wins.
float larger(float magnitude, float x) {
  const float m = std::fabs(x);
  return m > magnitude || m != m ? m : magnitude;
}

// One form: at(row, col) are the numbers of the matrix as the form has it.
template <class At>
class Quantiser {
 public:
  Quantiser(const Fp8Matrix& to, const At& at) : to_(to), at_(at) {}

  void run() const {
    const std::int64_t blocks = (to_.rows + fp8_block - 1) / fp8_block;
    if (to_.scaling == Fp8Scaling::tensor) {
      const float magnitude = magnitude_of(0, to_.rows, 0, to_.cols);
      scales()[0] = fp8::scale_of(format(), magnitude);
      backend::cpu::parallel_for(to_.rows, 16, [&](std::int64_t begin, std::int64_t end) {
        write(begin, end, 0, to_.codes.dim(1), magnitude);
      });
      return;
    }
    backend::cpu::parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) quantise_rows(block);
    });
  }

 private:
  DType format() const { return to_.codes.dtype(); }
  float* scales() const { return to_.scales.template as<float>(); }

  void quantise_rows(std::int64_t block) const {
    const std::int64_t begin = block * fp8_block, end = std::min(begin + fp8_block, to_.rows);
    const std::int64_t width = to_.scaling == Fp8Scaling::row ? to_.codes.dim(1) : fp8_block;
    const std::int64_t height = to_.scaling == Fp8Scaling::square ? fp8_block : 1;
    for (std::int64_t col = 0; col < to_.codes.dim(1); col += width) {
      for (std::int64_t row = begin; row < end; row += height) {
        const std::int64_t row_end = std::min(row + height, end);
        const float magnitude = magnitude_of(row, row_end, col, std::min(col + width, to_.cols));
        scale_at(row, col) = fp8::scale_of(format(), magnitude);
        write(row, row_end, col, col + width, magnitude);
      }
    }
  }

  float& scale_at(std::int64_t row, std::int64_t col) const {
    if (to_.scaling == Fp8Scaling::row) return scales()[row];
    if (to_.scaling == Fp8Scaling::vector) return scales()[col / fp8_block * to_.scales.ld() + row];
    return scales()[row / fp8_block * to_.scales.ld() + col / fp8_block];
  }

  float magnitude_of(std::int64_t row, std::int64_t row_end, std::int64_t col, std::int64_t col_end) const {
    float magnitude = 0;
    for (std::int64_t r = row; r < row_end; ++r) {
      for (std::int64_t c = col; c < col_end; ++c) magnitude = larger(magnitude, at_(r, c));
    }
    return magnitude;
  }

  void write(std::int64_t row, std::int64_t row_end, std::int64_t col, std::int64_t col_end, float magnitude) const {
    const float inverse = fp8::inverse_of(format(), magnitude);
    for (std::int64_t r = row; r < row_end; ++r) {
      auto* codes = static_cast<std::uint8_t*>(to_.codes.data()) + r * to_.codes.ld();
      for (std::int64_t c = col; c < col_end; ++c) {
        codes[c] = fp8::code_of(format(), (c < to_.cols ? at_(r, c) : 0.0f) * inverse);
      }
    }
  }

  const Fp8Matrix& to_;
  const At& at_;
};

template <class T>
void quantise(const Fp8Forms& to, ConstView x) {
  const T* data = x.as<T>();
  const std::int64_t ld = x.ld();
  const auto as_it_lies = [=](std::int64_t r, std::int64_t c) { return static_cast<float>(data[r * ld + c]); };
  const auto transposed = [=](std::int64_t r, std::int64_t c) { return static_cast<float>(data[c * ld + r]); };
  if (!to.rows.absent()) Quantiser(to.rows, as_it_lies).run();
  if (!to.columns.absent()) Quantiser(to.columns, transposed).run();
}

}  // namespace

void quantise_fp8(Exec&, const Fp8Forms& to, ConstView x) {
  if (x.dtype() == DType::bf16) return quantise<bf16>(to, x);
  quantise<float>(to, x);
}

}  // namespace inlay::ops::cpu
