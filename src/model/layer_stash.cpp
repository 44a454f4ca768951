#include "model/layer_stash.h"

#include <algorithm>

namespace inlay::model {

using backend::Lane;
using backend::Signal;

LayerStash::LayerStash(Exec& exec, std::string name, DType dtype, Shape shape, int slabs, StashPlace* place)
    : name_(std::move(name)), dtype_(dtype), shape_(shape), place_(place), slabs_(static_cast<std::size_t>(slabs)) {
  for (Slab& slab : slabs_) slab.view = exec.arena().keep(MemoryClass::activations, name_, dtype_, shape_);
  if (!place_->on_disk) return;
  staging_out_ = exec.host().arena().keep(MemoryClass::activations, name_ + " to disk", dtype_, shape_);
  staging_in_ = exec.host().arena().keep(MemoryClass::activations, name_ + " from disk", dtype_, shape_);
}

LayerStash::Slab* LayerStash::find(std::int64_t layer) {
  const auto found = std::find_if(slabs_.begin(), slabs_.end(), [&](const Slab& s) { return s.layer == layer; });
  return found == slabs_.end() ? nullptr : &*found;
}

bool LayerStash::holds(std::int64_t layer) const { return const_cast<LayerStash*>(this)->find(layer) != nullptr; }

// The one that was taken longest ago: its copies have had the most time.
LayerStash::Slab* LayerStash::find_free() {
  for (std::size_t i = 1; i <= slabs_.size(); ++i) {
    const std::size_t index = (last_ + i) % slabs_.size();
    if (slabs_[index].layer >= 0) continue;
    last_ = index;
    return &slabs_[index];
  }
  return nullptr;
}

LayerStash::Home LayerStash::make_home(Exec& exec) {
  Home home;
  if (!place_->on_disk) {
    home.memory = exec.host().arena().keep(MemoryClass::activations, name_, dtype_, shape_);
    return home;
  }
  home.offset = place_->bytes;
  place_->bytes += static_cast<std::uint64_t>(shape_.size()) * size_of(dtype_);
  return home;
}

View LayerStash::open(Exec& exec, std::int64_t layer) {
  Slab* slab = find_free();
  INLAY_ASSERT(slab != nullptr, "{}: no slab is free for layer {}", name_, layer);
  slab->layer = layer;
  slab->copied.wait(exec, Lane::compute);
  return slab->view;
}

void LayerStash::store(Exec& exec, std::int64_t layer) {
  Slab* slab = find(layer);
  INLAY_ASSERT(slab != nullptr, "{}: layer {} is in no slab", name_, layer);
  Home& home = homes_.emplace(layer, make_home(exec)).first->second;
  Signal written;
  written.record(exec, Lane::compute);
  written.wait(exec, Lane::to_host);
  if (place_->on_disk) {
    copy_to_host(exec, staging_out_, slab->view);
    exec.count(&backend::Work::to_disk, static_cast<double>(staging_out_.bytes()));
    call_in_lane(exec, Lane::to_host, [file = place_->file, offset = home.offset, from = staging_out_] {
      file->write(offset, from.data(), from.bytes());
    });
  } else {
    copy_to_host(exec, home.memory, slab->view);
  }
  home.stored.record(exec, Lane::to_host);
  slab->copied = home.stored;
}

void LayerStash::close(Exec& exec, std::int64_t layer) {
  Slab* slab = find(layer);
  INLAY_ASSERT(slab != nullptr, "{}: layer {} is in no slab", name_, layer);
  slab->read.record(exec, Lane::compute);
  slab->layer = -1;
}

void LayerStash::prefetch(Exec& exec, std::int64_t layer) {
  if (holds(layer)) return;
  Slab* slab = find_free();
  if (slab == nullptr) return;
  const Home& home = homes_.at(layer);
  slab->layer = layer;
  for (const Signal& before : {slab->read, slab->copied, home.stored}) before.wait(exec, Lane::to_device);
  if (place_->on_disk) {
    call_in_lane(exec, Lane::to_device, [file = place_->file, offset = home.offset, to = staging_in_] {
      file->read(offset, to.data(), to.bytes());
    });
    exec.count(&backend::Work::from_disk, static_cast<double>(staging_in_.bytes()));
    copy_to_device(exec, slab->view, staging_in_);
  } else {
    copy_to_device(exec, slab->view, home.memory);
  }
  slab->arrived.record(exec, Lane::to_device);
}

View LayerStash::fetch(Exec& exec, std::int64_t layer) {
  prefetch(exec, layer);
  Slab* slab = find(layer);
  INLAY_ASSERT(slab != nullptr, "{}: no slab is free for layer {}", name_, layer);
  slab->arrived.wait(exec, Lane::compute);
  return slab->view;
}

}  // namespace inlay::model
