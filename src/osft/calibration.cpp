#include "osft/calibration.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/matmul.h"
#include "ops/elementwise.h"
#include "ops/factors.h"
#include "weights/principal.h"

namespace inlay::osft {

using backend::matmul;
using backend::ScratchScope;
using backend::Transpose;

Calibration::Calibration(const OsftLayout& layout, std::int64_t tokens, const Weights& weights, BasisStore& store,
                         TargetProgress progress, IsMine is_mine)
    : layout_(layout), tokens_(tokens), store_(store), progress_(std::move(progress)), is_mine_(std::move(is_mine)) {
  for (weights::ObservedWeight* weight : weights) {
    if (layout.find(weight->parameter().name) != nullptr) weights_.push_back(weight);
  }
}

Calibration::Moments Calibration::begin(Exec& exec, weights::ObservedWeight& weight) {
  const weights::Parameter& parameter = weight.parameter();
  const std::int64_t in = weight.in_features();
  Moments moments{.weight = &weight};
  // How many rows an expert will see nobody knows; and all experts of a layer freeze as many directions, so that they
  // are multiplied by together.
  if (2 * tokens_ < in && parameter.expert < 0) {
    moments.rows =
        exec.arena().keep(MemoryClass::bases, parameter.name + " inputs", parameter.value.dtype(), {tokens_, in});
  } else {
    moments.covariance =
        exec.arena().keep(MemoryClass::bases, parameter.name + " second moments", DType::f32, {in, in});
    exec.fill_zero(moments.covariance);
  }
  return moments;
}

void Calibration::see(Exec& exec, Moments& moments, ConstView x) {
  if (moments.rows.absent()) {
    matmul(exec, moments.covariance, x, Transpose::yes, x, Transpose::no, {.beta = 1.0f});
  } else {
    ops::cast(exec, moments.rows.slice_rows(moments.filled, moments.filled + x.dim(0)), x);
  }
  moments.filled += x.dim(0);
}

void Calibration::begin_layer(Exec& exec, std::int64_t layer) {
  mark_ = exec.arena().mark();
  for (weights::ObservedWeight* weight : weights_) {
    if (weight->parameter().layer == layer) live_.push_back(begin(exec, *weight));
  }
  for (Moments& moments : live_) {
    moments.weight->observe = [this, &moments](Exec& e, ConstView x) { see(e, moments, x); };
  }
}

void Calibration::end_layer(Exec& exec, std::int64_t) {
  for (const Moments& moments : live_) {
    if (exec.planning() || is_mine_(moments.weight->parameter().name)) find_directions(exec, moments);
    moments.weight->observe = nullptr;
  }
  live_.clear();
  exec.arena().release_to(mark_);
}

void Calibration::begin_head(Exec& exec) {
  mark_ = exec.arena().mark();
  for (weights::ObservedWeight* weight : weights_) {
    if (weight->parameter().layer < 0) live_.push_back(begin(exec, *weight));
  }
}

void Calibration::final_hidden(Exec& exec, ConstView hidden) {
  for (Moments& moments : live_) see(exec, moments, hidden);
}

void Calibration::end_head(Exec& exec) { end_layer(exec, -1); }

void Calibration::find_directions(Exec& exec, const Moments& moments) {
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  const std::int64_t in = moments.weight->in_features();
  const weights::Parameter& parameter = moments.weight->parameter();
  const auto nominal = std::get<weights::InputLayout>(*layout_.find(parameter.name));
  const bool from_rows = moments.covariance.absent();
  const std::int64_t count = from_rows ? tokens_ : in;
  View energies = arena.scratch("energies", DType::f32, {count});
  View directions = arena.scratch("directions", DType::f32, {count, in});
  std::int64_t seen = in;
  if (from_rows) {
    seen = weights::principal_of_inputs(exec, {energies, directions}, moments.rows, parameter.name);
  } else {
    weights::principal_of_covariance(exec, {energies, directions}, moments.covariance, parameter.name);
    if (parameter.expert < 0) seen = std::min(in, moments.filled);
  }
  // Directions that no token had are as free as any: there is nothing to keep in them.
  const std::int64_t frozen = std::min(nominal.frozen, seen);
  const weights::InputLayout found{.free = in - frozen, .frozen = frozen};
  const View rows = found.stores_frozen() ? directions.slice_rows(0, frozen) : directions.slice_rows(frozen, in);
  ++done_;
  if (exec.planning()) return;
  BasisStore::Tensor tensor{DType::f32, rows.shape(), std::vector<std::byte>(rows.bytes())};
  exec.download(tensor.bytes.data(), rows);
  store_.put(parameter.name + (found.stores_frozen() ? ".frozen" : ".free"), std::move(tensor));
  if (progress_) progress_(done_, static_cast<std::int64_t>(weights_.size()));
}

void LayerImportance::layer_output(Exec& exec, std::int64_t layer, ConstView x, ConstView y) {
  const ScratchScope scope(exec.arena());
  View dots = exec.arena().scratch("row products", DType::f32, {3, x.dim(0)});
  const auto row = [&](std::int64_t i) { return dots.slice_rows(i, i + 1).reshape({x.dim(0)}); };
  ops::row_dot(exec, row(0), x, y);
  ops::row_dot(exec, row(1), x, x);
  ops::row_dot(exec, row(2), y, y);
  if (exec.planning()) return;
  const auto tokens = static_cast<std::size_t>(x.dim(0));
  std::vector<float> host(3 * tokens);
  exec.download(host.data(), dots);
  if (sums_.size() <= static_cast<std::size_t>(layer)) sums_.resize(static_cast<std::size_t>(layer) + 1);
  Sum& sum = sums_[static_cast<std::size_t>(layer)];
  for (std::size_t t = 0; t < tokens; ++t) {
    const double norms = std::sqrt(static_cast<double>(host[tokens + t]) * static_cast<double>(host[2 * tokens + t]));
    if (norms > 0) sum.cosines += static_cast<double>(host[t]) / norms;
  }
  sum.tokens += x.dim(0);
}

std::vector<double> LayerImportance::relative() const {
  std::vector<double> importance;
  for (const Sum& sum : sums_) {
    importance.push_back(sum.cosines / static_cast<double>(std::max<std::int64_t>(sum.tokens, 1)));
  }
  const double mean = std::accumulate(importance.begin(), importance.end(), 0.0) /
                      static_cast<double>(std::max<std::size_t>(importance.size(), 1));
  for (double& value : importance) value = mean > 0 ? value / mean : 1.0;
  return importance;
}

}  // namespace inlay::osft
