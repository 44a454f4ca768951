#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "weights/dense.h"
#include "weights/factor_subspace.h"
#include "weights/input_subspace.h"

namespace inlay::weights {

// The same matrix of all experts of a layer, as their rows see it: row i of x belongs to the expert e with
// offsets[e] <= i < offsets[e + 1] (int32 [E + 1] on the device) and meets that expert's weight. Every expert has a
// parameter and a weight of its own: any of them may be frozen, train, or train in a subspace. Where all are of one
// kind they are one grouped product, and nobody waits for the offsets; otherwise the host does, and goes through them
// one by one.
class ExpertWeights {
 public:
  ExpertWeights(Exec& exec, std::vector<Parameter>& parameters, const WeightFactory& make_weight);

  void forward(Exec& exec, View y, ConstView x, ConstView offsets);           // y = x Wᵀ
  void backward_input(Exec& exec, View dx, ConstView dy, ConstView offsets);  // dx = dy W
  void accumulate(Exec& exec, ConstView dy, ConstView x, ConstView offsets);  // the gradients += dyᵀ x

 private:
  // Those whose gradients can be found together; empty where they cannot.
  using Group = std::variant<std::monostate, std::vector<DenseWeight*>, std::vector<InputSubspace*>,
                             std::vector<FactorSubspace*>>;

  Group group() const;
  std::vector<ConstView> matrices() const;  // of all experts; empty where one of them has none
  template <class Body>
  void one_by_one(Exec& exec, ConstView offsets, std::int64_t rows, const Body& body);

  std::vector<std::unique_ptr<ops::Linear>> weights_;
  Group group_;
};

}  // namespace inlay::weights
