#include "weights/thin_svd.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/eigen.h"
#include "backend/matmul_f64.h"
#include "core/philox.h"
#include "ops/elementwise.h"
#include "weights/finite.h"

// Let n be the shorter side of W and m the longer. The eigenvectors Q of the Gram matrix of the shorter side are one
// side's singular vectors, orthonormal whatever W is; P = Q·W holds the other side's, times their singular values, and
// W = Qᵀ·P always. Rounding in the Gram matrix leaves P's rows oblique by eps·σ₁²/(σ_i·σ_j): nothing where singular
// values are large, everything where they are tiny. So only rows within `reach` of the largest are taken. They are
// normalised and straightened by one Newton step. What is left of the other rows, beside the directions taken, is a
// smaller problem of its own whose largest singular value is the first one that was not taken: the same again. Four
// rounds reach from 1 down to rounding; rows below that, which hold nothing but rounding, are drawn at random and go
// through the same rounds.
namespace inlay::weights {

namespace {

using backend::Exec;
using backend::matmul_f64;
using backend::ScratchScope;
using backend::Transpose;

// Rows within this of the largest singular value are oblique by eps/reach² at most, about 1e-8 times a modest factor;
// a Newton step squares that.
constexpr double reach = 1e-4;

class Solver {
 public:
  Solver(Exec& exec, ConstView w)
      : exec_(exec),
        w_(w),
        tall_(w.dim(0) > w.dim(1)),
        n_(std::min(w.dim(0), w.dim(1))),
        m_(std::max(w.dim(0), w.dim(1))),
        q_(exec.arena().scratch("singular vectors", DType::f64, {n_, n_})),
        p_(exec.arena().scratch("singular vectors", DType::f64, {n_, m_})),
        square_(exec.arena().scratch("Gram matrix", DType::f64, {n_, n_})),
        values_(exec.arena().scratch("eigenvalues", DType::f64, {n_})),
        sigma_(static_cast<std::size_t>(n_), 0.0),
        rank_(n_) {}

  ThinSvd solve(OpenDirections open, std::string_view name) {
    start(name);
    if (exec_.planning()) {  // the longest round there can be
      take(0, n_);
      restart(0);
    } else if (n_ > 0) {
      rounds(open);
    }
    return {tall_ ? p_ : q_, tall_ ? q_ : p_, sigma_, rank_};
  }

 private:
  void start(std::string_view name);
  void rounds(OpenDirections open);
  void take(std::int64_t begin, std::int64_t end);
  void restart(std::int64_t begin);
  void draw(std::int64_t begin);
  void read_sigma(std::int64_t begin);

  // W in fp64, as scratch of the caller's scope.
  View widened() {
    const View wide = exec_.arena().scratch("matrix in fp64", DType::f64, w_.shape());
    ops::cast(exec_, wide, w_);
    return wide;
  }
  View square(std::int64_t rows, std::int64_t cols) const { return {square_.data(), DType::f64, {rows, cols}}; }
  // rows = factors · rows
  void rotate(View rows, ConstView factors);

  Exec& exec_;
  ConstView w_;
  bool tall_;
  std::int64_t n_, m_;
  View q_, p_, square_, values_;
  std::vector<double> sigma_;  // of rows not yet taken, too, as the last round saw them
  std::int64_t rank_;
};

// All of W. The Gram matrix is taken with a minus, so that eigenvalues that ascend are singular values that descend.
void Solver::start(std::string_view name) {
  const Transpose first = tall_ ? Transpose::yes : Transpose::no, second = tall_ ? Transpose::no : Transpose::yes;
  {
    ScratchScope scope(exec_.arena());
    const View w = widened();
    matmul_f64(exec_, q_, w, first, w, second, -1.0);
  }
  require_finite(exec_, q_, name);
  backend::symmetric_eigen(exec_, values_, q_);
  read_sigma(0);
  ScratchScope scope(exec_.arena());
  const View w = widened();  // again: the eigensolver had the room in between
  matmul_f64(exec_, p_, q_, Transpose::no, w, first);
}

void Solver::rounds(OpenDirections open) {
  const double noise = static_cast<double>(m_) * std::numeric_limits<double>::epsilon() * sigma_[0];
  const auto at = [this](std::int64_t i) -> double& { return sigma_[static_cast<std::size_t>(i)]; };
  for (std::int64_t begin = 0, end = 0; begin < n_; begin = end) {
    if (begin > 0) restart(begin);
    if (rank_ == n_ && at(begin) <= noise) {
      rank_ = begin;
      if (open == OpenDirections::drop) break;
      draw(begin);
      restart(begin);
    }
    end = begin + 1;
    while (end < n_ && at(end) > reach * at(begin)) ++end;
    take(begin, end);
  }
  // Rounds agree on a singular value at their border to about 1e-8; an order that rounding turned around is evened out.
  for (std::int64_t i = 0; i < n_; ++i) at(i) = i < rank_ ? std::min(at(i), at(std::max<std::int64_t>(i - 1, 0))) : 0.0;
}

// Rows begin .. end of p_ become orthonormal: V/σ, then V + ½(I − V·Vᵀ)·V.
void Solver::take(std::int64_t begin, std::int64_t end) {
  const View rows = p_.slice_rows(begin, end), factors = values_.slice(0, 0, end - begin);
  std::vector<double> inverse(sigma_.begin() + begin, sigma_.begin() + end);
  for (double& value : inverse) value = 1.0 / value;
  exec_.upload(factors, inverse.data());
  ops::scale_rows(exec_, rows, factors);
  const View gram = square(end - begin, end - begin);
  matmul_f64(exec_, gram, rows, Transpose::no, rows, Transpose::yes);
  ScratchScope scope(exec_.arena());
  const View straight = exec_.arena().scratch("rows of singular vectors", DType::f64, rows.shape());
  ops::cast(exec_, straight, rows);
  matmul_f64(exec_, straight, gram, Transpose::no, rows, Transpose::no, -0.5, 1.5);
  ops::cast(exec_, rows, straight);
}

// Rows from `begin` on: what the taken ones have of them goes, and the rest is decomposed among itself.
void Solver::restart(std::int64_t begin) {
  const View rows = p_.slice_rows(begin, n_), taken = p_.slice_rows(0, begin);
  const View shares = square(n_ - begin, begin), gram = square(n_ - begin, n_ - begin);
  matmul_f64(exec_, shares, rows, Transpose::no, taken, Transpose::yes);
  matmul_f64(exec_, rows, shares, Transpose::no, taken, Transpose::no, -1.0, 1.0);
  matmul_f64(exec_, gram, rows, Transpose::no, rows, Transpose::yes, -1.0);
  backend::symmetric_eigen(exec_, values_.slice(0, begin, n_), gram);
  read_sigma(begin);
  rotate(rows, gram);
  rotate(q_.slice_rows(begin, n_), gram);
}

void Solver::rotate(View rows, ConstView factors) {
  ScratchScope scope(exec_.arena());
  const View rotated = exec_.arena().scratch("rows of singular vectors", DType::f64, rows.shape());
  matmul_f64(exec_, rotated, factors, Transpose::no, rows, Transpose::no);
  ops::cast(exec_, rows, rotated);
}

// Row by row, from the host: this is rare.
void Solver::draw(std::int64_t begin) {
  const Philox philox{0x05f7};
  std::vector<double> row(static_cast<std::size_t>(m_));
  for (std::int64_t i = begin; i < n_; ++i) {
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = philox.normal(j, static_cast<std::uint64_t>(i));
    exec_.upload(p_.slice_rows(i, i + 1), row.data());
  }
}

void Solver::read_sigma(std::int64_t begin) {
  exec_.download(sigma_.data() + begin, values_.slice(0, begin, n_));
  for (std::int64_t i = begin; i < n_; ++i) {
    double& value = sigma_[static_cast<std::size_t>(i)];
    value = std::sqrt(std::max(0.0, -value));
  }
}

}  // namespace

ThinSvd thin_svd(Exec& exec, ConstView w, OpenDirections open, std::string_view name) {
  INLAY_ASSERT(w.rank() == 2, "thin_svd: {} is {}, expected [N, M]", name, w.shape().str());
  INLAY_ASSERT(w.dtype() == DType::f32 || w.dtype() == DType::bf16, "thin_svd: {} is {}, expected fp32 or bf16", name,
               name_of(w.dtype()));
  return Solver(exec, w).solve(open, name);
}

}  // namespace inlay::weights
