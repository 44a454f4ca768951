#include "train/host_optimizer.h"

#include "ops/kernels.h"

namespace inlay::train {

HostOptimizer::HostOptimizer(Exec& exec, std::map<std::int64_t, std::vector<Slot>> layers, bool clips)
    : exec_(exec.host()), clips_(clips), beside_(exec.on_cuda() && !exec.planning()) {
  for (auto& [layer, slots] : layers) layers_[layer].slots = std::move(slots);
  Arena& arena = exec_.arena();
  sum_ = arena.keep(MemoryClass::optimizer, "gradient square sum", DType::f64, {1});
  partial_sums_ = arena.keep(MemoryClass::optimizer, "partial sums", DType::f64, {ops::partial_sum_count});
  scale_ = arena.keep(MemoryClass::optimizer, "gradient scale", DType::f32, {1});
  if (beside_) {
    thread_ = std::thread([this] { work_off(); });
  }
}

HostOptimizer::~HostOptimizer() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// What is still to be done when the end comes is done: a checkpoint may be waiting for it.
void HostOptimizer::work_off() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      job();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure != nullptr && failure_ == nullptr) failure_ = failure;
    ++done_;
    changed_.notify_all();
  }
}

void HostOptimizer::submit(Layer& layer, std::function<void()> work) {
  if (!beside_) return work();
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(work));
    layer.job = ++submitted_;
  }
  changed_.notify_all();
}

void HostOptimizer::wait_for_job(std::size_t job) {
  if (!beside_) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= job; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void HostOptimizer::wait_for(std::int64_t layer) {
  if (const auto found = layers_.find(layer); found != layers_.end()) wait_for_job(found->second.job);
}

void HostOptimizer::wait() { wait_for_job(submitted_); }

void HostOptimizer::begin_step(int passes, const ops::AdamWSettings& settings) {
  // The last step's updates may still be under way: whoever needs a layer waits for it (wait_for).
  passes_ = passes;
  settings_ = settings;
  for (auto& [number, layer] : layers_) layer.passes = 0;
}

void HostOptimizer::sum(Layer& layer) {
  layer.square_sum = 0;
  for (const Slot& slot : layer.slots) {
    ops::cpu::kernels().sum_of_squares(exec_, sum_, 0, slot.grad, partial_sums_);
    layer.square_sum += *static_cast<const double*>(sum_.data());
  }
}

void HostOptimizer::apply(Layer& layer, float grad_scale, const ops::AdamWSettings& common) {
  *static_cast<float*>(scale_.data()) = grad_scale;
  ops::adamw_steps(exec_, layer.slots, scale_, common);
}

void HostOptimizer::plan(const ops::AdamWSettings& settings) {
  for (const auto& [number, layer] : layers_) {
    for (const Slot& slot : layer.slots) exec_.count_bytes({slot.grad});  // its sum of squares
    ops::adamw_steps(exec_, layer.slots, scale_, settings);
  }
}

void HostOptimizer::gradients_arriving(std::int64_t number, const backend::Signal& arrived) {
  const auto found = layers_.find(number);
  if (found == layers_.end()) return;  // nothing of it trains
  Layer& layer = found->second;
  if (++layer.passes < passes_) return;
  submit(layer, [this, &layer, arrived, settings = settings_] {
    arrived.wait_on_host();
    sum(layer);
    if (!clips_) apply(layer, 1.0f, settings);
  });
}

double HostOptimizer::square_sum() {
  wait();
  double total = 0;
  for (const auto& [number, layer] : layers_) total += layer.square_sum;
  return total;
}

void HostOptimizer::update(float grad_scale) {
  if (!clips_) return;  // done already
  for (auto& [number, layer] : layers_) {
    submit(layer, [this, &mine = layer, grad_scale, settings = settings_] { apply(mine, grad_scale, settings); });
  }
}

}  // namespace inlay::train
