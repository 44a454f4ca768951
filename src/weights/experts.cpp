#include "weights/experts.h"

#include "backend/grouped_matmul.h"

namespace inlay::weights {

using backend::grouped_matmul;
using backend::Transpose;

namespace {

// The weights as what they are, where all are the same.
template <class Weight>
std::vector<Weight*> all_of(const std::vector<std::unique_ptr<ops::Linear>>& weights) {
  std::vector<Weight*> result;
  for (const auto& weight : weights) {
    auto* mine = dynamic_cast<Weight*>(weight.get());
    if (mine == nullptr) return {};
    result.push_back(mine);
  }
  return result;
}

template <class Weight>
std::vector<Weight*> all_of_one_layout(const std::vector<std::unique_ptr<ops::Linear>>& weights) {
  std::vector<Weight*> result = all_of<Weight>(weights);
  for (const Weight* weight : result) {
    if (weight->layout() != result.front()->layout()) return {};
  }
  return result;
}

}  // namespace

ExpertWeights::ExpertWeights(Exec& exec, std::vector<Parameter>& parameters, const WeightFactory& make_weight) {
  for (Parameter& p : parameters) weights_.push_back(make_weight(exec, p));
  group_ = group();
}

ExpertWeights::Group ExpertWeights::group() const {
  if (auto dense = all_of<DenseWeight>(weights_); !dense.empty()) return dense;
  if (auto inputs = all_of_one_layout<InputSubspace>(weights_); !inputs.empty()) return inputs;
  auto factors = all_of_one_layout<FactorSubspace>(weights_);
  if (!factors.empty() && factors.front()->layout().route != Route::factored) return factors;
  return {};
}

// They are asked every time: weights that live on the host are in different places of the device.
std::vector<ConstView> ExpertWeights::matrices() const {
  std::vector<ConstView> result;
  for (const auto& weight : weights_) {
    result.push_back(weight->matrix());
    if (result.back().absent()) return {};
  }
  return result;
}

// body(weight, first row, end) for every expert, empty ones too. A plan knows no offsets: there every expert has all
// rows, which takes most memory, and its share of their work.
template <class Body>
void ExpertWeights::one_by_one(Exec& exec, ConstView offsets, std::int64_t rows, const Body& body) {
  if (exec.planning()) {
    const backend::CostScope cost(exec, 1.0 / static_cast<double>(weights_.size()));
    for (const auto& weight : weights_) body(*weight, 0, rows);
    return;
  }
  std::vector<std::int32_t> at(weights_.size() + 1);
  exec.download(at.data(), offsets);
  for (std::size_t e = 0; e < weights_.size(); ++e) body(*weights_[e], at[e], at[e + 1]);
}

void ExpertWeights::forward(Exec& exec, View y, ConstView x, ConstView offsets) {
  const std::vector<ConstView> all = matrices();
  if (!all.empty()) return grouped_matmul(exec, y, x, all, Transpose::yes, offsets);
  one_by_one(exec, offsets, x.dim(0), [&](ops::Linear& weight, std::int64_t begin, std::int64_t end) {
    if (begin < end) weight.forward(exec, y.slice_rows(begin, end), x.slice_rows(begin, end));
  });
}

void ExpertWeights::backward_input(Exec& exec, View dx, ConstView dy, ConstView offsets) {
  const std::vector<ConstView> all = matrices();
  if (!all.empty()) return grouped_matmul(exec, dx, dy, all, Transpose::no, offsets);
  one_by_one(exec, offsets, dy.dim(0), [&](ops::Linear& weight, std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    weight.backward_input(exec, dx.slice_rows(begin, end), Grad::overwrite, dy.slice_rows(begin, end));
  });
}

void ExpertWeights::accumulate(Exec& exec, ConstView dy, ConstView x, ConstView offsets) {
  if (auto* dense = std::get_if<std::vector<DenseWeight*>>(&group_)) {
    return DenseWeight::accumulate_group(exec, *dense, dy, x, offsets);
  }
  if (auto* inputs = std::get_if<std::vector<InputSubspace*>>(&group_)) {
    return InputSubspace::accumulate_group(exec, *inputs, dy, x, offsets);
  }
  if (auto* factors = std::get_if<std::vector<FactorSubspace*>>(&group_)) {
    return FactorSubspace::accumulate_group(exec, *factors, dy, x, offsets);
  }
  // An expert without rows has a gradient too: zero.
  one_by_one(exec, offsets, x.dim(0), [&](ops::Linear& weight, std::int64_t begin, std::int64_t end) {
    weight.accumulate(exec, dy.slice_rows(begin, end), x.slice_rows(begin, end));
  });
}

}  // namespace inlay::weights
