#pragma once

#include <functional>
#include <vector>

#include "backend/lanes.h"
#include "parallel/mesh.h"
#include "weights/access.h"
#include "weights/weight.h"

namespace inlay::weights {

// What must move around the layers' work: matrices that live on the host, matrices and gradients of which every process
// holds its rows alone, gradients that are sums over processes, values that others have changed. Buffers of the device
// take turns in holding the whole of what is elsewhere between uses, two for layers and one for what is outside them;
// everything moves beside the kernels of the layer before or after. Between uses a parameter's views are those of where
// it lives.
class WeightTraffic final : public WeightAccess {
 public:
  // A layer, or the embedding, or the final norm with the head: its matrices, and everything whose gradient a pass
  // writes.
  struct Group {
    std::vector<Parameter*> matrices, gradients;
  };
  // Of the embedding, every layer, and the head.
  WeightTraffic(Exec& exec, parallel::Mesh mesh, const std::vector<Group>& groups);

  void begin_pass(bool last) override { last_pass_ = last; }
  void acquire(Exec& exec, std::int64_t group, Pass pass) override;
  void release(Exec& exec, std::int64_t group, Pass pass) override;
  void finish_gradients(Exec& exec) override;
  void values_changed(Exec& exec) override;

  // Called before a layer's values leave the host, which may not be final yet.
  std::function<void(std::int64_t layer)> before_upload;
  // Called after a backward pass of a layer; its gradients are on the host once the signal has come.
  std::function<void(std::int64_t layer, const backend::Signal& arrived)> after_backward;

 private:
  struct Moved {
    Parameter* parameter;
    View home;               // where it lives: all of it, or this process's rows
    std::size_t offset = 0;  // in a buffer
    View whole;              // the parameter's own view of all of it between uses; absent where it has none
  };
  struct Buffer {
    View memory;
    std::int64_t group = -2;  // whose values or gradients it holds
    bool busy = false;        // kernels may still be launched on it
    bool fresh = false;       // values as they came
    backend::Signal used, uploaded, arrived, copied;
  };
  struct Member {
    std::vector<Moved> values, grads;         // that are elsewhere between uses
    std::vector<Parameter*> cut_values;       // whole here, but rows of them change elsewhere
    std::vector<Parameter*> cut_grads, sums;  // whole here: summed by rows, and altogether
    backend::Signal sent, gathered;
  };
  struct Pool {
    std::vector<Buffer> values, grads;
  };

  bool outside(std::int64_t group) const {
    return group < 0 || group + 2 == static_cast<std::int64_t>(members_.size());
  }
  Member& member(std::int64_t group) { return members_[static_cast<std::size_t>(group + 1)]; }
  Pool& pool(std::int64_t group) { return outside(group) ? outer_ : layers_; }
  static Buffer* find(std::vector<Buffer>& buffers, std::int64_t group);
  static Buffer* take(std::vector<Buffer>& buffers, std::int64_t group);
  std::string named(const char* what, std::int64_t group) const;  // for who wants to know where a run hangs
  parallel::CutTensor cut_of(const Parameter& parameter, View whole, View share) const;

  void prefetch(Exec& exec, std::int64_t group, Pass pass);
  void bring_values(Exec& exec, std::int64_t group);
  void bring_gradients(Exec& exec, std::int64_t group);
  void bind_gradients(Exec& exec, std::int64_t group);
  void send_gradients(Exec& exec, std::int64_t group);
  void sum_gradients(Exec& exec, std::int64_t group);

  parallel::Mesh mesh_;
  std::vector<Member> members_;  // by group + 1
  Pool layers_, outer_;
  bool last_pass_ = true;
  backend::Signal summed_, changed_;
};

}  // namespace inlay::weights
