#pragma once

#include <functional>
#include <map>
#include <vector>

#include "model/decoder.h"
#include "osft/basis_store.h"
#include "weights/observed.h"

namespace inlay::osft {

// Called with targets done and targets in all.
using TargetProgress = std::function<void(std::int64_t, std::int64_t)>;
// Whether this process is to find the directions of a target, by its parameter's name: several divide them.
using IsMine = std::function<bool(const std::string&)>;

// Basis `activations`: runs text through the base model and takes, at the input of every target, the directions that
// carry energy. Second moments are summed in fp32 while the model runs, a layer at a time; activations are not kept. An
// input that is wide for the number of tokens keeps its rows instead, which is less, and spares the large eigenproblem.
class Calibration final : public model::Decoder::LayerObserver {
 public:
  // layout: how many directions each target should freeze. tokens: of all batches.
  // weights: of the decoder that will be observed.
  using Weights = std::vector<weights::ObservedWeight*>;
  Calibration(
      const OsftLayout& layout, std::int64_t tokens, const Weights& weights, BasisStore& store, TargetProgress progress,
      IsMine is_mine = [](const std::string&) { return true; });

  void begin_layer(Exec& exec, std::int64_t layer) override;
  void end_layer(Exec& exec, std::int64_t layer) override;
  void begin_head(Exec& exec) override;
  void final_hidden(Exec& exec, ConstView hidden) override;
  void end_head(Exec& exec) override;

 private:
  struct Moments {
    weights::ObservedWeight* weight = nullptr;
    View covariance;  // fp32 [M, M], or
    View rows;        // [tokens, M] where the input is wide
    std::int64_t filled = 0;
  };

  Moments begin(Exec& exec, weights::ObservedWeight& weight);
  void see(Exec& exec, Moments& moments, ConstView x);
  void find_directions(Exec& exec, const Moments& moments);

  const OsftLayout& layout_;
  std::int64_t tokens_;
  BasisStore& store_;
  TargetProgress progress_;
  IsMine is_mine_;
  Weights weights_;  // those that are targets
  std::vector<Moments> live_;
  std::size_t mark_ = 0;
  std::int64_t done_ = 0;
};

// For adaptive ranks: the mean cosine between what enters and what leaves each layer, over all tokens, divided by its
// mean over the layers. A layer that changes its input little has a high one, and more of it is frozen.
class LayerImportance final : public model::Decoder::LayerObserver {
 public:
  void layer_output(Exec& exec, std::int64_t layer, ConstView x, ConstView y) override;
  std::vector<double> relative() const;

 private:
  struct Sum {
    double cosines = 0;
    std::int64_t tokens = 0;
  };
  std::vector<Sum> sums_;
};

}  // namespace inlay::osft
