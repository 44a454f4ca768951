#include "ops/fp8.h"

#include <array>
#include <functional>
#include <tuple>
#include <utility>

#include "ops/kernels.h"

namespace inlay::ops {

namespace {

using Take = std::function<View(const std::string& name, DType dtype, const Shape& shape)>;

constexpr std::array<std::pair<Fp8Recipe, std::string_view>, 3> recipes = {{
    {Fp8Recipe::block, "block"},
    {Fp8Recipe::row, "row"},
    {Fp8Recipe::tensor, "tensor"},
}};

// At most one side of a product may be scaled by squares: the weight where it is one, else the input.
Fp8Scaling scaling_of(const Fp8Settings& settings, Fp8Role role, bool sums_over_rows) {
  if (settings.recipe == Fp8Recipe::tensor) return Fp8Scaling::tensor;
  if (settings.recipe == Fp8Recipe::row) return Fp8Scaling::row;
  const bool squares = role == Fp8Role::weight || (role == Fp8Role::input && sums_over_rows);
  return squares ? Fp8Scaling::square : Fp8Scaling::vector;
}

struct Wanted {
  std::string_view name;
  Fp8Settings settings;
  Fp8Role role;
  Fp8Use use;
  std::int64_t rows, cols;
};

std::vector<Fp8Forms> make_forms(const Take& take, const Wanted& w, std::size_t count) {
  const DType format = w.role == Fp8Role::gradient ? w.settings.gradients : DType::e4m3;
  std::vector<Fp8Forms> result(count);
  const auto make = [&](Fp8Matrix Fp8Forms::*form, bool sums_over_rows, std::int64_t rows, std::int64_t cols) {
    const Fp8Scaling scaling = scaling_of(w.settings, w.role, sums_over_rows);
    const auto take_all = [&](const std::string& what, DType dtype, const Shape& of_one) {
      return take(what, dtype, {static_cast<std::int64_t>(count), of_one.size()});
    };
    const Shape codes_shape = backend::fp8_codes_shape(rows, cols),
                scales_shape = backend::fp8_scales_shape(scaling, rows, cols);
    const View codes = take_all(fmt::format("{} in fp8", w.name), format, codes_shape);
    const View scales = take_all(fmt::format("{}'s scales", w.name), DType::f32, scales_shape);
    for (std::size_t i = 0; i < count; ++i) {
      const auto begin = static_cast<std::int64_t>(i);
      result[i].*form = {.scaling = scaling,
                         .rows = rows,
                         .cols = cols,
                         .codes = codes.slice_rows(begin, begin + 1).reshape(codes_shape),
                         .scales = scales.slice_rows(begin, begin + 1).reshape(scales_shape)};
    }
  };
  if (w.use != Fp8Use::columns) make(&Fp8Forms::rows, false, w.rows, w.cols);
  if (w.use != Fp8Use::rows) make(&Fp8Forms::columns, true, w.cols, w.rows);
  return result;
}

Take scratch_of(Exec& exec) {
  return [&exec](const std::string& what, DType dtype, const Shape& shape) {
    return exec.arena().scratch(what, dtype, shape);
  };
}
Take room_of(Exec& exec, MemoryClass memory) {
  return [&exec, memory](const std::string& what, DType dtype, const Shape& shape) {
    return exec.arena().keep(memory, what, dtype, shape);
  };
}

}  // namespace

std::string_view name_of(Fp8Recipe recipe) {
  for (const auto& [known, name] : recipes) {
    if (known == recipe) return name;
  }
  return "?";
}

std::optional<Fp8Recipe> parse_fp8_recipe(std::string_view text) {
  for (const auto& [recipe, name] : recipes) {
    if (name == text) return recipe;
  }
  return std::nullopt;
}

Fp8Forms scratch_fp8(Exec& exec, std::string_view name, const Fp8Settings& settings, Fp8Role role, Fp8Use use,
                     std::int64_t rows, std::int64_t cols) {
  return make_forms(scratch_of(exec), {name, settings, role, use, rows, cols}, 1).front();
}

std::vector<Fp8Forms> scratch_fp8_of_many(Exec& exec, std::string_view name, const Fp8Settings& settings, Fp8Role role,
                                          Fp8Use use, std::int64_t rows, std::int64_t cols, std::size_t count) {
  return make_forms(scratch_of(exec), {name, settings, role, use, rows, cols}, count);
}

Fp8Forms keep_fp8(Exec& exec, MemoryClass memory, std::string_view name, const Fp8Settings& settings, Fp8Role role,
                  Fp8Use use, std::int64_t rows, std::int64_t cols) {
  return make_forms(room_of(exec, memory), {name, settings, role, use, rows, cols}, 1).front();
}

std::vector<Fp8Forms> keep_fp8_of_many(Exec& exec, MemoryClass memory, std::string_view name,
                                       const Fp8Settings& settings, Fp8Role role, Fp8Use use, std::int64_t rows,
                                       std::int64_t cols, std::size_t count) {
  return make_forms(room_of(exec, memory), {name, settings, role, use, rows, cols}, count);
}

void quantise_fp8(Exec& exec, const Fp8Forms& to, ConstView x) {
  check_activation("quantise_fp8", "x", x);
  INLAY_ASSERT(x.rank() == 2, "quantise_fp8: x is {}, expected a matrix", x.shape().str());
  if (to.rows.absent() && to.columns.absent()) return;
  for (const auto& [matrix, rows, cols] :
       {std::tuple(&to.rows, x.dim(0), x.dim(1)), std::tuple(&to.columns, x.dim(1), x.dim(0))}) {
    if (matrix->absent()) continue;
    INLAY_ASSERT(matrix->rows == rows && matrix->cols == cols, "quantise_fp8: x is {}, its form [{}, {}]",
                 x.shape().str(), matrix->rows, matrix->cols);
    exec.count_bytes({matrix->codes});
  }
  exec.count_bytes({x});
  if (exec.planning() || x.size() == 0) return;
  if (exec.on_cuda()) return cuda::quantise_fp8(exec, to, x);
  cpu::kernels().quantise_fp8(exec, to, x);
}

}  // namespace inlay::ops
