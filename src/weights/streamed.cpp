#include "weights/streamed.h"

#include <algorithm>

namespace inlay::weights {

using backend::Lane;
using backend::Signal;

namespace {

constexpr std::size_t buffer_count = 2;

std::size_t aligned(std::size_t bytes) { return (bytes + Arena::alignment - 1) / Arena::alignment * Arena::alignment; }

// The part of a buffer that stands for one tensor.
View at(const View& buffer, std::size_t offset, const View& like) {
  return View(static_cast<std::byte*>(buffer.data()) + offset, like.dtype(), like.shape());
}

}  // namespace

StreamedWeights::StreamedWeights(Exec& exec, std::vector<std::vector<Parameter*>> layers) {
  std::size_t most_values = 0, most_grads = 0;
  for (const std::vector<Parameter*>& parameters : layers) {
    std::vector<Matrix> matrices;
    std::size_t values = 0, grads = 0;
    for (Parameter* p : parameters) {
      matrices.push_back(
          {.parameter = p, .value = p->value, .grad = p->grad, .value_offset = values, .grad_offset = grads});
      values += aligned(p->value.bytes());
      if (!p->grad.absent()) grads += aligned(p->grad.bytes());
    }
    most_values = std::max(most_values, values);
    most_grads = std::max(most_grads, grads);
    layers_.push_back(std::move(matrices));
  }
  sent_.resize(layers_.size());
  const auto make = [&](std::vector<Buffer>& buffers, MemoryClass memory_class, const char* name, std::size_t bytes) {
    if (bytes == 0) return;
    buffers.resize(buffer_count);
    for (Buffer& buffer : buffers) {
      buffer.memory = exec.arena().keep(memory_class, name, DType::u8, {static_cast<std::int64_t>(bytes)});
    }
  };
  make(values_, MemoryClass::weights, "a layer's weights", most_values);
  make(grads_, MemoryClass::gradients, "a layer's gradients", most_grads);
}

bool StreamedWeights::streams(std::int64_t layer) const {
  return layer >= 0 && layer < static_cast<std::int64_t>(layers_.size()) &&
         !layers_[static_cast<std::size_t>(layer)].empty();
}

StreamedWeights::Buffer* StreamedWeights::find(std::vector<Buffer>& buffers, std::int64_t layer) {
  const auto found = std::find_if(buffers.begin(), buffers.end(), [&](const Buffer& b) { return b.layer == layer; });
  return found == buffers.end() ? nullptr : &*found;
}

// One that nobody works with: empty ones first, else the one that holds the layer farthest away.
StreamedWeights::Buffer* StreamedWeights::take(std::vector<Buffer>& buffers, std::int64_t layer) {
  Buffer* best = nullptr;
  const auto distance = [&](const Buffer& b) {
    return b.layer < 0 ? std::int64_t{1} << 40 : std::abs(b.layer - layer);
  };
  for (Buffer& buffer : buffers) {
    if (!buffer.busy && (best == nullptr || distance(buffer) > distance(*best))) best = &buffer;
  }
  if (best != nullptr) best->layer = layer;
  return best;
}

void StreamedWeights::prefetch(Exec& exec, std::int64_t layer, Pass pass) {
  if (!streams(layer)) return;
  const std::vector<Matrix>& matrices = layers_[static_cast<std::size_t>(layer)];
  if (find(values_, layer) == nullptr) {
    Buffer* buffer = take(values_, layer);
    if (buffer == nullptr) return;
    if (before_upload && !exec.planning()) before_upload(layer);
    buffer->used.wait(exec, Lane::to_device);
    for (const Matrix& m : matrices) copy_to_device(exec, at(buffer->memory, m.value_offset, m.value), m.value);
    buffer->arrived.record(exec, Lane::to_device);
    buffer->fresh = true;
  }
  if (pass == Pass::forward || grads_.empty() || find(grads_, layer) != nullptr) return;
  Buffer* buffer = take(grads_, layer);
  if (buffer == nullptr) return;
  // A second micro-batch adds to what the first has left on the host.
  buffer->copied.wait(exec, Lane::to_device);
  sent_[static_cast<std::size_t>(layer)].wait(exec, Lane::to_device);
  for (const Matrix& m : matrices) {
    if (m.grad.absent() || !m.parameter->grad_written()) continue;
    copy_to_device(exec, at(buffer->memory, m.grad_offset, m.grad), m.grad);
  }
  buffer->arrived.record(exec, Lane::to_device);
}

void StreamedWeights::bind_gradients(Exec& exec, std::int64_t layer) {
  Buffer* buffer = find(grads_, layer);
  if (buffer == nullptr) return;
  buffer->busy = true;
  buffer->arrived.wait(exec, Lane::compute);
  buffer->copied.wait(exec, Lane::compute);
  for (const Matrix& m : layers_[static_cast<std::size_t>(layer)]) {
    if (!m.grad.absent()) m.parameter->grad = at(buffer->memory, m.grad_offset, m.grad);
  }
}

void StreamedWeights::acquire(Exec& exec, std::int64_t layer, Pass pass) {
  if (!streams(layer)) return;
  prefetch(exec, layer, pass);
  Buffer* buffer = find(values_, layer);
  INLAY_ASSERT(buffer != nullptr, "no buffer is free for the weights of layer {}", layer);
  buffer->busy = true;
  buffer->arrived.wait(exec, Lane::compute);
  for (const Matrix& m : layers_[static_cast<std::size_t>(layer)]) {
    m.parameter->value = at(buffer->memory, m.value_offset, m.value);
    if (buffer->fresh && m.parameter->owner != nullptr) m.parameter->owner->arrived(exec);
  }
  buffer->fresh = false;
  if (pass == Pass::backward) bind_gradients(exec, layer);
}

void StreamedWeights::send_gradients(Exec& exec, std::int64_t layer) {
  Buffer* buffer = find(grads_, layer);
  if (buffer == nullptr) return;
  Signal written;
  written.record(exec, Lane::compute);
  written.wait(exec, Lane::to_host);
  for (const Matrix& m : layers_[static_cast<std::size_t>(layer)]) {
    if (m.grad.absent()) continue;
    copy_to_host(exec, m.grad, at(buffer->memory, m.grad_offset, m.grad));
    m.parameter->grad = m.grad;
  }
  // A signal of its own for every pass: somebody may still wait for the last one.
  buffer->copied = Signal();
  buffer->copied.record(exec, Lane::to_host);
  sent_[static_cast<std::size_t>(layer)] = buffer->copied;
  buffer->busy = false;
  buffer->layer = -1;
  if (after_backward && !exec.planning()) after_backward(layer, buffer->copied);
}

void StreamedWeights::release(Exec& exec, std::int64_t layer, Pass pass) {
  if (streams(layer)) {
    Buffer* buffer = find(values_, layer);
    buffer->busy = false;
    buffer->used.record(exec, Lane::compute);
    for (const Matrix& m : layers_[static_cast<std::size_t>(layer)]) m.parameter->value = m.value;
    if (pass == Pass::backward) send_gradients(exec, layer);
  }
  const std::int64_t direction = pass == Pass::forward ? 1 : -1;
  prefetch(exec, layer + direction, pass);
}

void StreamedWeights::forget() {
  for (Buffer& buffer : values_) buffer.layer = -1;
}

}  // namespace inlay::weights
