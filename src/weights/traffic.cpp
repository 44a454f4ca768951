#include "weights/traffic.h"

#include <algorithm>

namespace inlay::weights {

using backend::copy_in_lane;
using backend::copy_to_device;
using backend::copy_to_host;
using backend::Lane;
using backend::Signal;
using parallel::CutTensor;

namespace {

constexpr int layer_buffers = 2, outer_buffers = 1;
constexpr std::size_t alignment = 256;

std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

std::size_t whole_bytes(const Parameter& p, DType dtype) { return static_cast<std::size_t>(p.size()) * size_of(dtype); }

// All of a parameter's tensor in a buffer.
View at(const View& buffer, std::size_t offset, const Parameter& p, DType dtype) {
  return View(static_cast<std::byte*>(buffer.data()) + offset, dtype, p.shape);
}

View mine(const View& whole, const Parameter& p) { return whole.slice_rows(p.first_row(), p.end_row()); }

}  // namespace

WeightTraffic::WeightTraffic(Exec& exec, parallel::Mesh mesh, const std::vector<Group>& groups)
    : mesh_(std::move(mesh)) {
  struct Most {
    std::size_t values = 0, grads = 0;
  } layers, outer;
  members_.resize(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Member& member = members_[g];
    std::size_t values = 0, grads = 0;
    for (Parameter* p : groups[g].matrices) {
      if (p->on_host || p->holds_value) {
        member.values.push_back({.parameter = p, .home = p->my_value(), .offset = values, .whole = p->value});
        values += aligned(whole_bytes(*p, p->value.dtype()));
      } else if (p->cut != nullptr) {
        member.cut_values.push_back(p);
      }
    }
    for (Parameter* p : groups[g].gradients) {
      if (p->on_host || p->holds_grad) {
        member.grads.push_back({.parameter = p, .home = p->my_grad(), .offset = grads, .whole = p->grad});
        grads += aligned(whole_bytes(*p, DType::f32));
      } else if (mesh_.many()) {
        (p->cut != nullptr ? member.cut_grads : member.sums).push_back(p);
      }
    }
    Most& most = outside(static_cast<std::int64_t>(g) - 1) ? outer : layers;
    most.values = std::max(most.values, values);
    most.grads = std::max(most.grads, grads);
  }
  const auto make = [&](std::vector<Buffer>& buffers, MemoryClass memory_class, const char* name, std::size_t bytes,
                        int count) {
    if (bytes == 0) return;
    buffers.resize(static_cast<std::size_t>(count));
    for (Buffer& buffer : buffers) {
      buffer.memory = exec.arena().keep(memory_class, name, DType::u8, {static_cast<std::int64_t>(bytes)});
    }
  };
  make(layers_.values, MemoryClass::weights, "a layer's weights", layers.values, layer_buffers);
  make(layers_.grads, MemoryClass::gradients, "a layer's gradients", layers.grads, layer_buffers);
  make(outer_.values, MemoryClass::weights, "an embedding's weights", outer.values, outer_buffers);
  make(outer_.grads, MemoryClass::gradients, "an embedding's gradients", outer.grads, outer_buffers);
}

WeightTraffic::Buffer* WeightTraffic::find(std::vector<Buffer>& buffers, std::int64_t group) {
  const auto found = std::find_if(buffers.begin(), buffers.end(), [&](const Buffer& b) { return b.group == group; });
  return found == buffers.end() ? nullptr : &*found;
}

// One that nobody works with: empty ones first, else the one that holds the layer farthest away.
WeightTraffic::Buffer* WeightTraffic::take(std::vector<Buffer>& buffers, std::int64_t group) {
  Buffer* best = nullptr;
  const auto distance = [&](const Buffer& b) {
    return b.group < -1 ? std::int64_t{1} << 40 : std::abs(b.group - group);
  };
  for (Buffer& buffer : buffers) {
    if (!buffer.busy && (best == nullptr || distance(buffer) > distance(*best))) best = &buffer;
  }
  if (best != nullptr) best->group = group;
  return best;
}

std::string WeightTraffic::named(const char* what, std::int64_t group) const {
  if (group == embedding) return fmt::format("{} of the embedding", what);
  return outside(group) ? fmt::format("{} of the head", what) : fmt::format("{} of layer {}", what, group);
}

CutTensor WeightTraffic::cut_of(const Parameter& parameter, View whole, View share) const {
  return {.whole = whole, .share = share, .cut = parameter.cut.get()};
}

void WeightTraffic::bring_values(Exec& exec, std::int64_t group) {
  const Member& moved = member(group);
  std::vector<Buffer>& buffers = pool(group).values;
  if (moved.values.empty() || find(buffers, group) != nullptr) return;
  Buffer* buffer = take(buffers, group);
  if (buffer == nullptr) return;
  std::vector<CutTensor> gathered;
  bool uploads = false;
  for (const Moved& m : moved.values) {
    const Parameter& p = *m.parameter;
    const View whole = at(buffer->memory, m.offset, p, m.home.dtype());
    View share = m.home;
    if (p.on_host) {
      if (!std::exchange(uploads, true)) {
        if (before_upload && !exec.planning()) before_upload(group);
        buffer->used.wait(exec, Lane::to_device);
      }
      share = mine(whole, p);
      copy_to_device(exec, share, m.home);
    }
    if (p.cut != nullptr) gathered.push_back(cut_of(p, whole, share));
  }
  buffer->uploaded = Signal();
  if (uploads) buffer->uploaded.record(exec, Lane::to_device);
  buffer->arrived = buffer->uploaded;
  if (!gathered.empty()) {
    buffer->used.wait(exec, Lane::network);
    buffer->uploaded.wait(exec, Lane::network);
    mesh_.shards->all_gather(exec, gathered, named("weights", group));
    buffer->arrived = Signal();
    buffer->arrived.record(exec, Lane::network);
  }
  buffer->fresh = true;
}

void WeightTraffic::bring_gradients(Exec& exec, std::int64_t group) {
  Member& moved = member(group);
  std::vector<Buffer>& buffers = pool(group).grads;
  if (moved.grads.empty() || find(buffers, group) != nullptr) return;
  Buffer* buffer = take(buffers, group);
  if (buffer == nullptr) return;
  // A second micro-batch adds to what the first has left.
  buffer->copied.wait(exec, Lane::to_device);
  moved.sent.wait(exec, Lane::to_device);
  buffer->uploaded = Signal();
  for (const Moved& m : moved.grads) {
    if (!m.parameter->on_host || !m.parameter->grad_written()) continue;
    copy_to_device(exec, mine(at(buffer->memory, m.offset, *m.parameter, DType::f32), *m.parameter), m.home);
  }
  buffer->uploaded.record(exec, Lane::to_device);
}

void WeightTraffic::prefetch(Exec& exec, std::int64_t group, Pass pass) {
  if (group < -1 || group + 1 >= static_cast<std::int64_t>(members_.size())) return;
  if (pass != Pass::gradients) bring_values(exec, group);
  if (pass != Pass::forward) bring_gradients(exec, group);
}

void WeightTraffic::bind_gradients(Exec& exec, std::int64_t group) {
  const Member& moved = member(group);
  Buffer* buffer = find(pool(group).grads, group);
  if (buffer == nullptr) return;
  buffer->busy = true;
  buffer->uploaded.wait(exec, Lane::compute);
  buffer->copied.wait(exec, Lane::compute);
  moved.sent.wait(exec, Lane::compute);
  for (const Moved& m : moved.grads) {
    Parameter& p = *m.parameter;
    p.grad = at(buffer->memory, m.offset, p, DType::f32);
    if (p.cut == nullptr || !p.grad_written()) continue;
    // What is summed over processes already counts once: with the one that holds it.
    exec.fill_zero(p.grad.slice_rows(0, p.first_row()));
    exec.fill_zero(p.grad.slice_rows(p.end_row(), p.rows()));
    if (!p.on_host) copy_in_lane(exec, mine(p.grad, p), m.home, Lane::compute);
  }
}

void WeightTraffic::acquire(Exec& exec, std::int64_t group, Pass pass) {
  prefetch(exec, group, pass);
  Member& moved = member(group);
  if (pass != Pass::gradients) {
    moved.gathered.wait(exec, Lane::compute);
    if (!moved.values.empty()) {
      Buffer* buffer = find(pool(group).values, group);
      INLAY_ASSERT(buffer != nullptr, "no buffer is free for the weights of layer {}", group);
      buffer->busy = true;
      buffer->arrived.wait(exec, Lane::compute);
      for (const Moved& m : moved.values) {
        m.parameter->value = at(buffer->memory, m.offset, *m.parameter, m.home.dtype());
        if (buffer->fresh && m.parameter->owner != nullptr) m.parameter->owner->arrived(exec);
      }
      buffer->fresh = false;
    }
  }
  if (pass != Pass::forward) bind_gradients(exec, group);
}

void WeightTraffic::send_gradients(Exec& exec, std::int64_t group) {
  Member& moved = member(group);
  Buffer* buffer = find(pool(group).grads, group);
  if (buffer == nullptr) return;
  std::vector<CutTensor> summed;
  for (const Moved& m : moved.grads) {
    Parameter& p = *m.parameter;
    if (p.next_grad_mode() == Grad::overwrite) exec.fill_zero(p.grad);  // nobody wrote it
    if (p.cut != nullptr) summed.push_back(cut_of(p, p.grad, p.on_host ? mine(p.grad, p) : m.home));
  }
  Signal written, reduced;
  written.record(exec, Lane::compute);
  // A signal of its own for every pass: somebody may still wait for the last one.
  buffer->copied = Signal();
  if (!summed.empty()) {
    written.wait(exec, Lane::network);
    mesh_.shards->reduce_scatter(exec, summed, named("gradients", group));
    if (!mesh_.replicas->single() && last_pass_) {
      const backend::CostScope once_per_step(exec, backend::StepPart::sums);
      std::vector<View> shares;
      for (const CutTensor& t : summed) shares.push_back(t.share);
      mesh_.replicas->all_reduce(exec, shares, named("gradients", group));
    }
    reduced.record(exec, Lane::network);
    buffer->copied = reduced;
  }
  bool to_host = false;
  for (const Moved& m : moved.grads) {
    Parameter& p = *m.parameter;
    if (p.on_host) {
      if (!std::exchange(to_host, true)) {
        written.wait(exec, Lane::to_host);
        reduced.wait(exec, Lane::to_host);
      }
      copy_to_host(exec, m.home, mine(p.grad, p));
    }
    p.grad = m.whole;
  }
  if (to_host) {
    buffer->copied = Signal();
    buffer->copied.record(exec, Lane::to_host);
  }
  moved.sent = buffer->copied;
  if (!summed.empty()) summed_ = reduced;
  buffer->busy = false;
  buffer->group = -2;
  if (to_host && after_backward && !exec.planning()) after_backward(group, buffer->copied);
}

void WeightTraffic::sum_gradients(Exec& exec, std::int64_t group) {
  const Member& moved = member(group);
  if (!last_pass_ || (moved.sums.empty() && moved.cut_grads.empty())) return;
  const backend::CostScope once_per_step(exec, backend::StepPart::sums);
  std::vector<CutTensor> cut;
  std::vector<View> shares, whole;
  for (Parameter* p : moved.cut_grads) {
    p->ensure_grad(exec);
    cut.push_back(cut_of(*p, p->grad, p->my_grad()));
    shares.push_back(p->my_grad());
  }
  for (Parameter* p : moved.sums) {
    p->ensure_grad(exec);
    whole.push_back(p->grad);
  }
  Signal written;
  written.record(exec, Lane::compute);
  written.wait(exec, Lane::network);
  const std::string what = named("gradients", group);
  if (!cut.empty()) {
    mesh_.shards->reduce_scatter(exec, cut, what);
    if (!mesh_.replicas->single()) mesh_.replicas->all_reduce(exec, shares, what);
  }
  if (!whole.empty()) mesh_.all->all_reduce(exec, whole, what);
  summed_ = Signal();
  summed_.record(exec, Lane::network);
}

void WeightTraffic::release(Exec& exec, std::int64_t group, Pass pass) {
  if (pass != Pass::gradients) {
    if (Buffer* buffer = find(pool(group).values, group); buffer != nullptr && !member(group).values.empty()) {
      buffer->busy = false;
      buffer->used.record(exec, Lane::compute);
      for (const Moved& m : member(group).values) m.parameter->value = m.whole;
    }
  }
  // What comes next is asked for before gradients leave: these wait for this layer's kernels, and what is behind them
  // in their lane would, too. And its gradients get the buffer that is free, not this one, whose way out takes its
  // time.
  const std::int64_t next = group + (pass == Pass::forward ? 1 : -1);
  // On the way back an embedding is written to and not read.
  prefetch(exec, next, pass != Pass::forward && next == embedding ? Pass::gradients : pass);
  if (pass != Pass::forward) {
    send_gradients(exec, group);
    sum_gradients(exec, group);
  }
}

void WeightTraffic::finish_gradients(Exec& exec) { summed_.wait(exec, Lane::compute); }

void WeightTraffic::values_changed(Exec& exec) {
  for (Pool* pool : {&layers_, &outer_}) {
    for (Buffer& buffer : pool->values) buffer.group = -2;
  }
  changed_ = Signal();
  changed_.record(exec, Lane::compute);
  changed_.wait(exec, Lane::network);
  for (std::size_t g = 0; g < members_.size(); ++g) {
    Member& member = members_[g];
    if (member.cut_values.empty()) continue;
    std::vector<CutTensor> gathered;
    for (const Parameter* p : member.cut_values) gathered.push_back(cut_of(*p, p->value, p->my_value()));
    mesh_.shards->all_gather(exec, gathered, named("weights", static_cast<std::int64_t>(g) - 1));
    member.gathered = Signal();
    member.gathered.record(exec, Lane::network);
  }
}

}  // namespace inlay::weights
