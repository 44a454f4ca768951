#include "osft/calibration.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "backend/matmul.h"
#include "ops/elementwise.h"
#include "ops/factors.h"
#include "weights/principal.h"

namespace inlay::osft {

using backend::matmul;
using backend::ScratchScope;
using backend::Transpose;

Calibration::Calibration(const OsftLayout& layout, Text text, const Weights& weights, BasisStore& store,
                         TargetProgress progress, SearchTeam team)
    : layout_(layout), text_(std::move(text)), store_(store), progress_(std::move(progress)), team_(std::move(team)) {
  for (weights::ObservedWeight* weight : weights) {
    const std::string& name = weight->parameter().name;
    if (layout.find(name) == nullptr) continue;
    weights_.push_back(weight);
    if (team_.mine(name)) ++mine_;
  }
}

void Calibration::begin(Exec& exec, weights::ObservedWeight& weight) {
  Arena& arena = exec.arena();
  const weights::Parameter& parameter = weight.parameter();
  const std::int64_t in = weight.in_features(), tokens = text_.all_tokens();
  const DType dtype = parameter.value.dtype();
  Moments& moments = live_.emplace_back(Moments{.weight = &weight});
  if (!team_.ranks.single() && !rooms_.contains(room_of(parameter))) {
    const std::int64_t most = *std::ranges::max_element(text_.tokens);
    const std::int64_t rows = parameter.expert < 0 ? most : text_.experts * most;
    rooms_[room_of(parameter)].rows =
        arena.keep(MemoryClass::bases, parameter.name + " inputs of a batch", dtype, {rows, in});
  }
  if (!mine(moments)) return;
  // How many rows an expert will see nobody knows; and all experts of a layer freeze as many directions, so that they
  // are multiplied by together.
  if (2 * tokens < in && parameter.expert < 0) {
    moments.rows = arena.keep(MemoryClass::bases, parameter.name + " inputs", dtype, {tokens, in});
  } else {
    moments.covariance = arena.keep(MemoryClass::bases, parameter.name + " second moments", DType::f32, {in, in});
    exec.fill_zero(moments.covariance);
  }
}

void Calibration::add(Exec& exec, Moments& moments, ConstView x) const {
  if (moments.rows.absent()) {
    matmul(exec, moments.covariance, x, Transpose::yes, x, Transpose::no, {.beta = 1.0f});
    return;
  }
  ops::cast(exec, moments.rows.slice_rows(moments.filled, moments.filled + x.dim(0)), x);
  moments.filled += x.dim(0);
}

void Calibration::see(Exec& exec, Moments& moments, ConstView x) {
  team_.ranks.single() ? add(exec, moments, x) : keep(exec, moments, x);
}

void Calibration::keep(Exec& exec, Moments& moments, ConstView x) {
  if (exec.planning()) return;  // how many rows an expert will see nobody knows
  Room& room = rooms_.at(room_of(moments.weight->parameter()));
  INLAY_ASSERT(moments.seen.absent(), "{} sees a batch twice", moments.weight->parameter().name);
  const View rows = room.rows.slice_rows(room.used, room.used + x.dim(0));
  ops::cast(exec, rows, x);
  moments.seen = rows;
  room.used += x.dim(0);
}

void Calibration::begin_layer(Exec& exec, std::int64_t layer) {
  mark_ = exec.arena().mark();
  for (weights::ObservedWeight* weight : weights_) {
    if (weight->parameter().layer == layer) begin(exec, *weight);
  }
  for (Moments& moments : live_) {
    moments.weight->observe = [this, &moments](Exec& e, ConstView x) { see(e, moments, x); };
  }
}

void Calibration::layer_output(Exec& exec, std::int64_t, ConstView, ConstView) { own_batch_seen(exec); }

void Calibration::end_layer(Exec& exec, std::int64_t) {
  for (const Moments& moments : live_) moments.weight->observe = nullptr;
  if (!team_.ranks.single()) {
    while (next_ < text_.count()) pass_on(exec);
  }
  const auto find = [&] {
    for (const Moments& moments : live_) {
      if (mine(moments)) find_directions(exec, moments);
    }
  };
  exec.planning() ? find() : parallel::together(team_.ranks, "finding directions", find);
  live_.clear();
  rooms_.clear();
  own_ = next_ = 0;
  exec.arena().release_to(mark_);
}

void Calibration::own_batch_seen(Exec& exec) {
  if (team_.ranks.single()) return;
  const std::int64_t batch = team_.ranks.rank() + own_++ * team_.ranks.size();
  while (next_ <= batch) pass_on(exec);
}

void Calibration::pass_on(Exec& exec) {
  parallel::Communicator& ranks = team_.ranks;
  const std::int64_t batch = next_++;
  const int reader = Text::reader(batch, ranks.size());
  std::vector<std::int64_t> counts(live_.size(), text_.tokens[static_cast<std::size_t>(batch)]);
  if (!exec.planning()) {
    for (std::size_t i = 0; i < live_.size(); ++i) counts[i] = live_[i].seen.absent() ? 0 : live_[i].seen.dim(0);
    const std::size_t bytes = counts.size() * sizeof(std::int64_t);
    const std::string theirs = ranks.exchange({reinterpret_cast<const char*>(counts.data()), bytes},
                                              "rows of a batch")[static_cast<std::size_t>(reader)];
    INLAY_ASSERT(theirs.size() == bytes, "processes calibrate different targets");
    std::memcpy(counts.data(), theirs.data(), bytes);
  }
  for (std::size_t i = 0; i < live_.size(); ++i) {
    Moments& moments = live_[i];
    const weights::Parameter& parameter = moments.weight->parameter();
    if (counts[i] == 0) continue;
    const ScratchScope scope(exec.arena());
    const bool own = reader == ranks.rank() && !exec.planning();
    const View x = own ? moments.seen
                       : exec.arena().scratch("inputs of a batch", parameter.value.dtype(),
                                              {counts[i], moments.weight->in_features()});
    if (team_.owner_of(parameter.name) != reader) {
      backend::Signal ready, arrived;
      ready.record(exec, backend::Lane::compute);
      ready.wait(exec, backend::Lane::network);
      ranks.broadcast(exec, {&x, 1}, reader, "inputs of a batch");
      arrived.record(exec, backend::Lane::network);
      arrived.wait(exec, backend::Lane::compute);
    }
    if (mine(moments)) add(exec, moments, x);
  }
  if (reader != ranks.rank()) return;
  for (Moments& moments : live_) moments.seen = {};
  for (auto& [key, room] : rooms_) room.used = 0;
}

void Calibration::begin_head(Exec& exec) {
  mark_ = exec.arena().mark();
  for (weights::ObservedWeight* weight : weights_) {
    if (weight->parameter().layer < 0) begin(exec, *weight);
  }
}

void Calibration::final_hidden(Exec& exec, ConstView hidden) {
  for (Moments& moments : live_) see(exec, moments, hidden);
  own_batch_seen(exec);
}

void Calibration::end_head(Exec& exec) { end_layer(exec, -1); }

void Calibration::find_directions(Exec& exec, const Moments& moments) {
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  const std::int64_t in = moments.weight->in_features();
  const weights::Parameter& parameter = moments.weight->parameter();
  const auto nominal = std::get<weights::InputLayout>(*layout_.find(parameter.name));
  const bool from_rows = moments.covariance.absent();
  const std::int64_t count = from_rows ? text_.all_tokens() : in;
  View energies = arena.scratch("energies", DType::f32, {count});
  View directions = arena.scratch("directions", DType::f32, {count, in});
  std::int64_t seen = in;
  if (from_rows) {
    seen = weights::principal_of_inputs(exec, {energies, directions}, moments.rows, parameter.name);
  } else {
    weights::principal_of_covariance(exec, {energies, directions}, moments.covariance, parameter.name);
    if (parameter.expert < 0) seen = std::min(in, text_.all_tokens());
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
  if (progress_) progress_(done_, mine_);
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
  Sum& sum = sums_[static_cast<std::size_t>(layer)];
  for (std::size_t t = 0; t < tokens; ++t) {
    const double norms = std::sqrt(static_cast<double>(host[tokens + t]) * static_cast<double>(host[2 * tokens + t]));
    constexpr double unit = 1 << 30;  // exact up to eight million tokens
    if (norms > 0) sum.cosines += std::nearbyint(static_cast<double>(host[t]) / norms * unit);
  }
  sum.tokens += static_cast<double>(x.dim(0));
}

std::vector<double> LayerImportance::relative(parallel::Communicator& ranks) const {
  std::vector<double> flat;
  for (const Sum& sum : sums_) flat.insert(flat.end(), {sum.cosines, sum.tokens});
  flat = ranks.sum(flat, "the importance of layers");
  std::vector<double> importance;
  for (std::size_t i = 0; i < flat.size(); i += 2) importance.push_back(flat[i] / std::max(flat[i + 1], 1.0));
  const double mean = std::accumulate(importance.begin(), importance.end(), 0.0) /
                      static_cast<double>(std::max<std::size_t>(importance.size(), 1));
  for (double& value : importance) value = mean > 0 ? value / mean : 1.0;
  return importance;
}

}  // namespace inlay::osft
