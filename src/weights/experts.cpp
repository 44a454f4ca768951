#include "weights/experts.h"

#include <algorithm>

#include "weights/dense.h"

namespace inlay::weights {

namespace {

using Weights = std::vector<Weight*>;

// body(weight, first row, end) for every expert, empty ones too. A plan knows no offsets: there every expert has all
// rows, which takes most memory, and its share of their work.
template <class Body>
void one_by_one(Exec& exec, const Weights& weights, ConstView offsets, std::int64_t rows, const Body& body) {
  if (exec.planning()) {
    const backend::CostScope cost(exec, 1.0 / static_cast<double>(weights.size()));
    for (Weight* weight : weights) body(*weight, 0, rows);
    return;
  }
  std::vector<std::int32_t> at(weights.size() + 1);
  exec.download(at.data(), offsets);
  for (std::size_t e = 0; e < weights.size(); ++e) body(*weights[e], at[e], at[e + 1]);
}

ops::Call of_rows(const ops::Call& call, std::int64_t begin, std::int64_t end) {
  ops::Call part{.device_alpha = call.device_alpha, .first_row = call.first_row};
  if (call.rows.absent()) {
    part.first_row += begin;
  } else {
    part.rows = call.rows.slice(0, begin, end);
  }
  return part;
}

// An expert without rows has a gradient too: zero.
void accumulate_one_by_one(Exec& exec, const Weights& weights, ConstView dy, ConstView x, ConstView offsets,
                           const ops::Call& call) {
  one_by_one(exec, weights, offsets, x.dim(0), [&](Weight& weight, std::int64_t begin, std::int64_t end) {
    weight.accumulate(exec, dy.slice_rows(begin, end), x.slice_rows(begin, end), of_rows(call, begin, end));
  });
}

class OneByOne final : public WeightGroup {
 public:
  explicit OneByOne(Weights all) : all_(std::move(all)) {}

  void forward(Exec& exec, View y, Grad mode, ConstView x, ConstView offsets, const ops::Call& call) override {
    one_by_one(exec, all_, offsets, x.dim(0), [&](Weight& weight, std::int64_t begin, std::int64_t end) {
      if (begin == end) return;
      weight.forward(exec, y.slice_rows(begin, end), mode, x.slice_rows(begin, end), of_rows(call, begin, end));
    });
  }
  void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, ConstView offsets, const ops::Call& call) override {
    one_by_one(exec, all_, offsets, dy.dim(0), [&](Weight& weight, std::int64_t begin, std::int64_t end) {
      if (begin == end) return;
      weight.backward_input(exec, dx.slice_rows(begin, end), mode, dy.slice_rows(begin, end),
                            of_rows(call, begin, end));
    });
  }
  void accumulate(Exec& exec, ConstView dy, ConstView x, ConstView offsets, const ops::Call& call) override {
    accumulate_one_by_one(exec, all_, dy, x, offsets, call);
  }

 private:
  Weights all_;
};

// Plain products at once, gradients of different kinds one by one.
class GradientsOneByOne final : public DenseProducts {
 public:
  explicit GradientsOneByOne(Weights all) : DenseProducts(all), all_(std::move(all)) {}

  void accumulate(Exec& exec, ConstView dy, ConstView x, ConstView offsets, const ops::Call& call) override {
    accumulate_one_by_one(exec, all_, dy, x, offsets, call);
  }

 private:
  Weights all_;
};

std::unique_ptr<WeightGroup> group_of(const Weights& all) {
  if (all.empty()) return nullptr;
  if (auto group = all.front()->group(all)) return group;
  if (std::all_of(all.begin(), all.end(), [](const Weight* weight) { return weight->multiplies_plainly(); })) {
    return std::make_unique<GradientsOneByOne>(all);
  }
  return std::make_unique<OneByOne>(all);
}

}  // namespace

ExpertWeights::ExpertWeights(Exec& exec, std::vector<Parameter>& parameters, const WeightFactory& make_weight) {
  for (Parameter& p : parameters) weights_.push_back(make_weight(exec, p));
  Weights all;
  for (const auto& weight : weights_) all.push_back(weight.get());
  group_ = group_of(all);
}

}  // namespace inlay::weights
