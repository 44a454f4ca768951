#include "ops/quantised.h"

#include <numeric>

#include "ops/kernels.h"
#include "ops/quant_codes.h"

namespace inlay::ops {

namespace {

constexpr QuantFormat formats[] = {QuantFormat::nf4, QuantFormat::mxfp4, QuantFormat::int8, QuantFormat::fp8};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

void check_tensors(std::string_view op, const Quantised& matrix) {
  const View views[] = {matrix.codes, matrix.scales, matrix.nested_scales, matrix.offset};
  std::size_t at = 0;
  make_quantised(matrix.format, matrix.rows, matrix.cols, [&](std::string_view name, DType dtype, Shape shape) {
    check_shape(op, name, views[at], shape);
    check_dtype(op, name, views[at], dtype);
    INLAY_ASSERT(views[at].contiguous(), "{}: {} is strided", op, name);
    return views[at++];
  });
}

// What is read or written of the matrix for so many of its rows.
void count_rows(Exec& exec, const Quantised& matrix, std::int64_t rows) {
  const auto share = [&](const View& view) {
    const auto bytes = static_cast<double>(view.bytes()) * static_cast<double>(rows) /
                       static_cast<double>(std::max<std::int64_t>(matrix.rows, 1));
    return ConstView(view.data(), DType::u8, {static_cast<std::int64_t>(bytes)});
  };
  exec.count_bytes({share(matrix.codes), share(matrix.scales), share(matrix.nested_scales)});
}

}  // namespace

std::string_view name_of(QuantFormat format) {
  switch (format) {
    case QuantFormat::nf4: return "nf4";
    case QuantFormat::mxfp4: return "mxfp4";
    case QuantFormat::int8: return "int8";
    case QuantFormat::fp8: return "fp8";
  }
  return "";
}

std::optional<QuantFormat> parse_quant_format(std::string_view text) {
  for (const QuantFormat format : formats) {
    if (name_of(format) == text) return format;
  }
  return std::nullopt;
}

std::int64_t quant_column_multiple(QuantFormat format) { return format == QuantFormat::mxfp4 ? quant::mxfp4_block : 1; }

std::int64_t quant_row_step(QuantFormat format, std::int64_t cols) {
  return format == QuantFormat::nf4 ? quant::nf4_block / std::gcd(quant::nf4_block, cols) : 1;
}

std::int64_t quant_pending_scales(QuantFormat format, std::int64_t rows, std::int64_t cols) {
  return format == QuantFormat::nf4 ? ceil_div(rows * cols, quant::nf4_block) : 0;
}

Quantised make_quantised(QuantFormat format, std::int64_t rows, std::int64_t cols, const TakeTensor& take) {
  INLAY_ASSERT(rows >= 0 && cols > 0 && cols % quant_column_multiple(format) == 0, "a matrix [{}, {}] in {}", rows,
               cols, name_of(format));
  Quantised made{.format = format, .rows = rows, .cols = cols};
  switch (format) {
    case QuantFormat::nf4: {
      const std::int64_t blocks = quant_pending_scales(format, rows, cols);
      made.codes = take("codes", DType::u8, {ceil_div(rows * cols, 2)});
      made.scales = take("scales", DType::u8, {blocks});
      made.nested_scales = take("nested_scales", DType::f32, {ceil_div(blocks, quant::nested_block)});
      made.offset = take("offset", DType::f32, {1});
      break;
    }
    case QuantFormat::mxfp4:
      made.codes = take("codes", DType::u8, {rows, cols / 2});
      made.scales = take("scales", DType::u8, {rows, cols / quant::mxfp4_block});
      break;
    case QuantFormat::int8:
    case QuantFormat::fp8:
      made.codes = take("codes", format == QuantFormat::int8 ? DType::i8 : DType::u8, {rows, cols});
      made.scales = take("scales", DType::f32, {rows});
      break;
  }
  return made;
}

void quantise_rows(Exec& exec, const Quantised& to, std::int64_t row, ConstView values, View pending) {
  constexpr std::string_view op = "quantise_rows";
  check_tensors(op, to);
  INLAY_ASSERT(is_floating(values.dtype()) && values.dtype() != DType::f64, "{}: values are {}", op,
               name_of(values.dtype()));
  INLAY_ASSERT(values.rank() == 2 && values.dim(1) == to.cols && values.contiguous(),
               "{}: values are {}, expected rows of {}", op, values.shape().str(), to.cols);
  const std::int64_t end = row + values.dim(0), step = quant_row_step(to.format, to.cols);
  INLAY_ASSERT(row >= 0 && end <= to.rows && row % step == 0 && (end == to.rows || end % step == 0),
               "{}: rows [{}, {}) of {}, in steps of {}", op, row, end, to.rows, step);
  const std::int64_t waiting = quant_pending_scales(to.format, to.rows, to.cols);
  if (waiting > 0) {
    check_shape(op, "pending", pending, {waiting});
    check_dtype(op, "pending", pending, DType::f32);
  }
  exec.count_bytes({values});
  count_rows(exec, to, values.dim(0));
  if (exec.planning() || values.size() == 0) return;
  if (exec.on_cuda()) return cuda::quantise_rows(exec, to, row, values, pending);
  cpu::kernels().quantise_rows(exec, to, row, values, pending);
}

void finish_quantising(Exec& exec, const Quantised& to, View pending, std::optional<float> offset) {
  constexpr std::string_view op = "finish_quantising";
  check_tensors(op, to);
  const std::int64_t waiting = quant_pending_scales(to.format, to.rows, to.cols);
  if (waiting == 0) return;
  check_shape(op, "pending", pending, {waiting});
  check_dtype(op, "pending", pending, DType::f32);
  exec.count_bytes({pending, pending, to.scales, to.nested_scales});
  if (exec.planning()) return;
  if (offset) exec.upload(to.offset, &*offset);
  if (exec.on_cuda()) return cuda::finish_quantising(exec, to, pending, offset);
  cpu::kernels().finish_quantising(exec, to, pending, offset);
}

void dequantise_rows(Exec& exec, View out, std::span<const Quantised> matrices, std::int64_t row) {
  constexpr std::string_view op = "dequantise_rows";
  INLAY_ASSERT(!matrices.empty(), "{}: of no matrix", op);
  const Quantised& first = matrices.front();
  for (const Quantised& matrix : matrices) {
    check_tensors(op, matrix);
    INLAY_ASSERT(matrix.format == first.format && matrix.rows == first.rows && matrix.cols == first.cols,
                 "{}: matrices [{}, {}] in {} and [{}, {}] in {}", op, first.rows, first.cols, name_of(first.format),
                 matrix.rows, matrix.cols, name_of(matrix.format));
  }
  check_activation(op, "out", out);
  const auto count = static_cast<std::int64_t>(matrices.size());
  INLAY_ASSERT(out.rank() == 3 || (out.rank() == 2 && count == 1), "{}: out is {} for {} matrices", op,
               out.shape().str(), count);
  const std::int64_t rows = out.dim(out.rank() - 2);
  check_shape(op, "out", out, out.rank() == 3 ? Shape{count, rows, first.cols} : Shape{rows, first.cols});
  INLAY_ASSERT(out.contiguous(), "{}: out is strided", op);
  INLAY_ASSERT(row >= 0 && row + rows <= first.rows, "{}: rows [{}, {}) of {}", op, row, row + rows, first.rows);
  exec.count_bytes({out});
  for (const Quantised& matrix : matrices) count_rows(exec, matrix, rows);
  if (exec.planning() || out.size() == 0) return;
  if (exec.on_cuda()) return cuda::dequantise_rows(exec, out, matrices, row);
  cpu::kernels().dequantise_rows(exec, out, matrices, row);
}

}  // namespace inlay::ops
