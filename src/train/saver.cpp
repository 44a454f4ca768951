#include "train/saver.h"

#include <chrono>
#include <utility>

#include "core/interrupt.h"
#include "parallel/activity.h"

namespace inlay::train {

Saver::Saver(std::shared_ptr<parallel::Communicator> ranks) : ranks_(std::move(ranks)) {
  if (!ranks_->single()) relay_ = std::make_unique<parallel::Relay>(ranks_);
}

// Where an exception ends the run, the others may not come to what is left to be agreed on.
Saver::~Saver() {
  if (relay_) relay_->abandon();
}

void Saver::give_up() {
  if (!writing_.valid()) return;
  if (relay_) relay_->abandon();
  const parallel::LongWork patience;  // the others wait meanwhile
  writing_.wait_for(std::chrono::seconds(5));
}

void Saver::submit(std::int64_t step, Write write) {
  wait();
  step_ = step;
  if (relay_) relay_->expect();
  writing_ = std::async(std::launch::async, [this, work = std::move(write)] {
    const SignalShield shield;
    relay_ ? relay_->run(work) : work(*ranks_);
  });
}

void Saver::check() {
  if (!writing_.valid()) return;
  const bool ended = relay_ ? relay_->serve() : writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (ended) end();
}

void Saver::wait() {
  if (!writing_.valid()) return;
  if (relay_) relay_->serve_to_the_end();
  end();
}

void Saver::end() {
  std::future<void> ended = std::move(writing_);
  ended.wait();  // it may still be leaving
  if (relay_) relay_->raise_what_differs();
  ended.get();
}

}  // namespace inlay::train
