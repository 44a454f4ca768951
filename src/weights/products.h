#pragma once

#include <span>
#include <vector>

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
  // With room for the copies that somebody else has taken.
  Fp8Products(std::string name, const ops::Fp8Settings& settings, const ops::Fp8Forms& kept)
      : name_(std::move(name)), settings_(settings), kept_(kept) {}

  const ops::Fp8Settings& settings() const { return settings_; }
  void forget() { fresh_ = false; }
  bool stays() const { return !kept_.rows.absent() || !kept_.columns.absent(); }
  // Of the matrix, those that stay, or the forms that `use` says in scratch.
  ops::Fp8Forms copies(Exec& exec, ConstView matrix, ops::Fp8Use use);

  // Of the matrix: y = or += x Wᵀ, dx = or += dy W. x and dy may be absent where the call has their forms.
  void forward(Exec& exec, View y, Grad mode, ConstView matrix, ConstView x, const ops::Call& call);
  void backward_input(Exec& exec, View dx, Grad mode, ConstView matrix, ConstView dy, const ops::Call& call);
  // gradient = or += dyᵀ x
  void accumulate(Exec& exec, View gradient, Grad mode, ConstView dy, ConstView x, const ops::Call& call) const;

 private:
  std::string name_;
  ops::Fp8Settings settings_;
  ops::Fp8Forms kept_;
  bool fresh_ = false;
};

// Products in fp8 for matrices of one shape: of a layer, or the same of all its experts. Copies that stay lie evenly.
void multiply_in_fp8(Exec& exec, std::span<Parameter* const> alike, const ops::Fp8Settings& settings);
// One form (rows or columns) of the values of all experts of a layer, evenly spaced: their own copies, or, where these
// do not all stay, such in scratch.
std::vector<ops::Fp8Matrix> copies_of_all(Exec& exec, std::span<const Parameter* const> all, ops::Fp8Use use);

// The form of an operand that a product reads: the one at hand, or made now, in scratch.
ops::Fp8Matrix operand_in_fp8(Exec& exec, std::string_view name, const ops::Fp8Settings& settings, ops::Fp8Role role,
                              ops::Fp8Use use, ConstView plain, const ops::Fp8Forms* at_hand);

// y = or += x Wᵀ of the parameter's value; dx = or += dy W; gradient = or += dyᵀ x.
void multiply(Exec& exec, const Parameter& parameter, View y, Grad mode, ConstView x, const ops::Call& call);
void multiply_back(Exec& exec, const Parameter& parameter, View dx, Grad mode, ConstView dy, const ops::Call& call);
void multiply_over_rows(Exec& exec, const Parameter& parameter, View gradient, Grad mode, ConstView dy, ConstView x,
                        const ops::Call& call);

// What a product's old result counts.
inline float beta_of(Grad mode) { return mode == Grad::accumulate ? 1.0f : 0.0f; }

}  // namespace inlay::weights
