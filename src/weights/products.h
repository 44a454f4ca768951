#pragma once

#include "ops/fp8.h"
#include "ops/linear.h"
#include "weights/parameter.h"

// How the plain products of a matrix are made: in its own dtype, or in fp8 where the parameter says so.
namespace inlay::weights {

// A matrix's copies in fp8. Whoever changes the matrix says so; the next product makes them again. A matrix that comes
// to the device for use alone has none that stay: it is copied whenever it is multiplied by.
class Fp8Products {
 public:
  // rows, cols: of the matrix. stays: whether its value does, and so may the copies that `use` says.
  Fp8Products(Exec& exec, std::string name, const ops::Fp8Settings& settings, std::int64_t rows, std::int64_t cols,
              bool stays, ops::Fp8Use use = ops::Fp8Use::both);

  const ops::Fp8Settings& settings() const { return settings_; }
  void forget() { fresh_ = false; }

  // Of the matrix: y = or += x Wᵀ, dx = or += dy W. x and dy may be absent where the call has their forms.
  void forward(Exec& exec, View y, Grad mode, ConstView matrix, ConstView x, const ops::Call& call);
  void backward_input(Exec& exec, View dx, Grad mode, ConstView matrix, ConstView dy, const ops::Call& call);
  // gradient = or += dyᵀ x
  void accumulate(Exec& exec, View gradient, Grad mode, ConstView dy, ConstView x, const ops::Call& call) const;

 private:
  ops::Fp8Forms copies(Exec& exec, ConstView matrix, ops::Fp8Use use);

  std::string name_;
  ops::Fp8Settings settings_;
  ops::Fp8Forms kept_;
  bool fresh_ = false;
};

// y = or += x Wᵀ of the parameter's value; dx = or += dy W; gradient = or += dyᵀ x.
void multiply(Exec& exec, const Parameter& parameter, View y, Grad mode, ConstView x, const ops::Call& call);
void multiply_back(Exec& exec, const Parameter& parameter, View dx, Grad mode, ConstView dy, const ops::Call& call);
void multiply_over_rows(Exec& exec, const Parameter& parameter, View gradient, Grad mode, ConstView dy, ConstView x,
                        const ops::Call& call);

// What a product's old result counts.
inline float beta_of(Grad mode) { return mode == Grad::accumulate ? 1.0f : 0.0f; }

}  // namespace inlay::weights
