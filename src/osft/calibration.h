#pragma once

#include <functional>
#include <map>
#include <numeric>
#include <vector>

#include "model/decoder.h"
#include "osft/basis_store.h"
#include "weights/observed.h"

namespace inlay::osft {

// Called with targets done and targets in all.
using TargetProgress = std::function<void(std::int64_t, std::int64_t)>;

// The processes that search together, and which of them finds the directions of a target, by its parameter's name.
struct SearchTeam {
  parallel::Communicator& ranks;
  std::map<std::string, int> owners;

  int owner_of(const std::string& target) const { return owners.at(target); }
  bool mine(const std::string& target) const { return owner_of(target) == ranks.rank(); }
};

// Basis `activations`: runs text through the base model and takes, at the input of every target, the directions that
// carry energy. Second moments are summed in fp32 while the model runs, a layer at a time; activations are not kept. An
// input that is wide for the number of tokens keeps its rows instead, which is less, and spares the large eigenproblem.
// Batches are dealt to the processes in turn; what the targets see of one goes to their owners, who add it up batch by
// batch: the sums are those of one process, to the bit.
class Calibration final : public model::Decoder::LayerObserver {
 public:
  // The batches of all processes, and who passes which. A token goes to so many experts.
  struct Text {
    std::vector<std::int64_t> tokens;  // of each batch
    std::int64_t experts = 1;

    std::int64_t count() const { return static_cast<std::int64_t>(tokens.size()); }
    std::int64_t all_tokens() const { return std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}); }
    static int reader(std::int64_t batch, int ranks) { return static_cast<int>(batch % ranks); }
  };
  // layout: how many directions each target should freeze. weights: of the decoder that will be observed.
  using Weights = std::vector<weights::ObservedWeight*>;
  Calibration(const OsftLayout& layout, Text text, const Weights& weights, BasisStore& store, TargetProgress progress,
              SearchTeam team);

  void begin_layer(Exec& exec, std::int64_t layer) override;
  void layer_output(Exec& exec, std::int64_t layer, ConstView x, ConstView y) override;
  void end_layer(Exec& exec, std::int64_t layer) override;
  void begin_head(Exec& exec) override;
  void final_hidden(Exec& exec, ConstView hidden) override;
  void end_head(Exec& exec) override;

 private:
  struct Moments {
    weights::ObservedWeight* weight = nullptr;
    View covariance;          // fp32 [M, M], or
    View rows;                // [tokens, M] where the input is wide
    std::int64_t filled = 0;  // of the rows
    View seen;                // of the batch at hand, until all processes have come to it
  };
  // Room for what a batch shows: of experts, all of a layer share it.
  struct Room {
    View rows;
    std::int64_t used = 0;
  };
  using RoomKey = std::pair<weights::Role, bool>;  // bool: of experts
  static RoomKey room_of(const weights::Parameter& parameter) { return {parameter.role, parameter.expert >= 0}; }

  bool mine(const Moments& moments) const { return team_.mine(moments.weight->parameter().name); }
  void begin(Exec& exec, weights::ObservedWeight& weight);
  void see(Exec& exec, Moments& moments, ConstView x);
  void keep(Exec& exec, Moments& moments, ConstView x);
  void add(Exec& exec, Moments& moments, ConstView x) const;
  // A batch of this process has been seen: everything up to it goes to the owners.
  void own_batch_seen(Exec& exec);
  void pass_on(Exec& exec);
  void find_directions(Exec& exec, const Moments& moments);

  const OsftLayout& layout_;
  Text text_;
  BasisStore& store_;
  TargetProgress progress_;
  SearchTeam team_;
  Weights weights_;        // those that are targets
  std::int64_t mine_ = 0;  // of these, to be found here
  std::vector<Moments> live_;
  std::map<RoomKey, Room> rooms_;
  std::int64_t own_ = 0, next_ = 0;  // batches of this process so far; the batch that is passed on next
  std::size_t mark_ = 0;
  std::int64_t done_ = 0;
};

// For adaptive ranks: the mean cosine between what enters and what leaves each layer, over all tokens, divided by its
// mean over the layers. A layer that changes its input little has a high one, and more of it is frozen.
class LayerImportance final : public model::Decoder::LayerObserver {
 public:
  explicit LayerImportance(std::int64_t layers) : sums_(static_cast<std::size_t>(layers)) {}

  void layer_output(Exec& exec, std::int64_t layer, ConstView x, ConstView y) override;
  // Of the tokens of all processes, each of which has observed some.
  std::vector<double> relative(parallel::Communicator& ranks) const;

 private:
  struct Sum {
    double cosines = 0, tokens = 0;  // whole numbers, whose sums do not depend on their order
  };
  std::vector<Sum> sums_;
};

}  // namespace inlay::osft
