#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/lanes.h"
#include "backend/spill_file.h"

namespace inlay::model {

using backend::Exec;

// Where tensors wait between the passes: in memory of the host, or in a file of a local disk. When planning there is no
// file yet, and `bytes` says how large it must be.
struct StashPlace {
  bool on_disk = false;
  std::shared_ptr<backend::SpillFile> file;
  std::uint64_t bytes = 0;
};

// Tensors of one kind, one a layer, that leave the device in the forward pass and come back in the backward pass,
// beside the kernels of other layers. On the device they live in a few slabs that take turns; no kernel and no copy
// touches a slab before those that were there are done with it, and the host waits for nothing.
class LayerStash {
 public:
  LayerStash(Exec& exec, std::string name, DType dtype, Shape shape, int slabs, StashPlace* place);
  LayerStash(const LayerStash&) = delete;
  LayerStash& operator=(const LayerStash&) = delete;

  // A slab for the layer's tensor, to be written by kernels.
  View open(Exec& exec, std::int64_t layer);
  // The slab was written: its way to the host begins.
  void store(Exec& exec, std::int64_t layer);
  // No kernel will read it any more: the slab may take another.
  void close(Exec& exec, std::int64_t layer);

  // Begins to bring the layer's tensor back, where a slab is free.
  void prefetch(Exec& exec, std::int64_t layer);
  // The tensor, for kernels from now on: where it still is, or back from the host.
  View fetch(Exec& exec, std::int64_t layer);

  bool holds(std::int64_t layer) const;                                     // in a slab
  bool stored(std::int64_t layer) const { return homes_.contains(layer); }  // on the host, or on its way

 private:
  struct Slab {
    View view;
    std::int64_t layer = -1;  // whose tensor it holds
    backend::Signal read;     // by the last kernel
    backend::Signal copied;   // to the host
    backend::Signal arrived;  // from the host
  };
  struct Home {
    View memory;               // absent on a disk
    std::uint64_t offset = 0;  // there
    backend::Signal stored;
  };

  Slab* find(std::int64_t layer);
  Slab* find_free();
  Home make_home(Exec& exec);

  std::string name_;
  DType dtype_;
  Shape shape_;
  StashPlace* place_;
  std::vector<Slab> slabs_;
  std::size_t last_ = 0;  // the slab that was taken last
  std::map<std::int64_t, Home> homes_;
  View staging_out_, staging_in_;  // pinned memory between device and disk
};

}  // namespace inlay::model
