#include "ops/muon.h"

#include <utility>

#include "backend/matmul.h"
#include "ops/adamw.h"
#include "ops/elementwise.h"
#include "ops/kernels.h"

namespace inlay::ops {

void muon_momentum(Exec& exec, View grad, View m, ConstView grad_scale, float momentum) {
  constexpr std::string_view op = "muon_momentum";
  check_dtype(op, "grad", grad, DType::f32);
  check_activation(op, "m", m);
  check_shape(op, "m", m, grad.shape());
  INLAY_ASSERT(grad.contiguous() && m.contiguous(), "{}: a strided tensor", op);
  if (grad_scale) {
    check_shape(op, "grad_scale", grad_scale, {1});
    check_dtype(op, "grad_scale", grad_scale, DType::f32);
  }
  exec.count_bytes({grad, grad, m, m});
  if (exec.planning() || grad.size() == 0) return;
  if (exec.on_cuda()) return cuda::muon_momentum(exec, grad, m, grad_scale, momentum);
  cpu::kernels().muon_momentum(exec, grad, m, grad_scale, momentum);
}

namespace {

void normalise(Exec& exec, View to, ConstView from) {
  const View square_sum = exec.arena().scratch("square sum of a matrix", DType::f64, {1});
  sum_of_squares(exec, square_sum, 0, from);
  exec.count_bytes({to, from});
  if (exec.planning()) return;
  if (exec.on_cuda()) return cuda::normalise(exec, to, from, square_sum);
  cpu::kernels().normalise(exec, to, from, square_sum);
}

}  // namespace

// Every step maps the singular values s to a·s + b·s³ + c·s⁵, with coefficients that lift small ones fastest.
void orthogonalise(Exec& exec, View x, float factor) {
  constexpr std::string_view op = "orthogonalise";
  constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
  constexpr int steps = 5;
  using backend::matmul;
  using enum backend::Transpose;
  check_dtype(op, "x", x, DType::f32);
  INLAY_ASSERT(x.rank() == 2 && x.contiguous(), "{}: x is {}, expected a contiguous matrix", op, x.shape().str());
  if (x.size() == 0) return;
  ScratchScope scope(exec.arena());
  const auto scratch = [&](const char* name, std::int64_t rows, std::int64_t cols) {
    return exec.arena().scratch(name, DType::bf16, {rows, cols});
  };
  View now = scratch("orthogonal matrix", x.dim(0), x.dim(1)), next = scratch("orthogonal matrix", x.dim(0), x.dim(1));
  normalise(exec, now, x);
  // Products of the matrix with itself are taken on its smaller side: the same polynomial, from the left or the right.
  const bool wide = x.dim(0) <= x.dim(1);
  const std::int64_t side = wide ? x.dim(0) : x.dim(1);
  const View gram = scratch("gram matrix", side, side), polynomial = scratch("gram matrix", side, side);
  for (int step = 0; step < steps; ++step) {
    matmul(exec, gram, now, wide ? no : yes, now, wide ? yes : no);
    cast(exec, polynomial, gram);
    matmul(exec, polynomial, gram, no, gram, no, {.alpha = c, .beta = b});  // b·G + c·G²
    const bool last = step + 1 == steps;
    const View to = last ? x : next;
    const float scale = last ? factor : 1.0f;
    cast(exec, to, now);
    matmul(exec, to, wide ? polynomial : now, no, wide ? now : polynomial, no, {.alpha = scale, .beta = scale * a});
    std::swap(now, next);
  }
}

}  // namespace inlay::ops
