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

Fp8Forms make_forms(const Take& take, std::string_view name, const Fp8Settings& settings, Fp8Role role, Fp8Use use,
                    std::int64_t rows, std::int64_t cols) {
  const DType format = role == Fp8Role::gradient ? settings.gradients : DType::e4m3;
  const auto make = [&](Fp8Scaling scaling, std::int64_t r, std::int64_t c) {
    Fp8Matrix matrix{.scaling = scaling, .rows = r, .cols = c};
    matrix.codes = take(fmt::format("{} in fp8", name), format, backend::fp8_codes_shape(r, c));
    matrix.scales = take(fmt::format("{}'s scales", name), DType::f32, backend::fp8_scales_shape(scaling, r, c));
    return matrix;
  };
  Fp8Forms forms;
  if (use != Fp8Use::columns) forms.rows = make(scaling_of(settings, role, false), rows, cols);
  if (use != Fp8Use::rows) forms.columns = make(scaling_of(settings, role, true), cols, rows);
  return forms;
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
  const Take take = [&](const std::string& what, DType dtype, const Shape& shape) {
    return exec.arena().scratch(what, dtype, shape);
  };
  return make_forms(take, name, settings, role, use, rows, cols);
}

Fp8Forms keep_fp8(Exec& exec, MemoryClass memory, std::string_view name, const Fp8Settings& settings, Fp8Role role,
                  Fp8Use use, std::int64_t rows, std::int64_t cols) {
  const Take take = [&](const std::string& what, DType dtype, const Shape& shape) {
    return exec.arena().keep(memory, what, dtype, shape);
  };
  return make_forms(take, name, settings, role, use, rows, cols);
}

void quantise_fp8(Exec& exec, const Fp8Forms& to, ConstView x) {
  check_activation("quantise_fp8", "x", x);
  INLAY_ASSERT(x.rank() == 2, "quantise_fp8: x is {}, expected a matrix", x.shape().str());
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
