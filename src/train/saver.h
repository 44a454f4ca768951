#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>

#include "parallel/relay.h"

namespace inlay::train {

// Writes checkpoints beside the steps, one after the other. The processes of a run write together: what they have to
// agree on in the meantime they do in check() and wait(), which all of them call between the same steps, and what goes
// wrong comes out of these on all of them alike.
class Saver {
 public:
  explicit Saver(std::shared_ptr<parallel::Communicator> ranks = parallel::single_process());
  ~Saver();

  // Begins to write that of a step, when the one before it is on disk. Throws what went wrong with that one.
  using Write = std::function<void(parallel::Communicator& ranks)>;
  void submit(std::int64_t step, Write write);
  // Throws what went wrong with the last one, if that is known.
  void check();
  // Until the last one is on disk. Throws what went wrong with it.
  void wait();
  // This rank alone fails: the last one is not finished. Waits a moment for what was written of it to be removed.
  void give_up();
  // The step whose checkpoint was submitted last.
  std::int64_t step() const { return step_; }

 private:
  void end();  // throws what went wrong

  std::shared_ptr<parallel::Communicator> ranks_;
  std::unique_ptr<parallel::Relay> relay_;  // null in a run of one process
  std::future<void> writing_;               // waits when it goes
  std::int64_t step_ = 0;
};

}  // namespace inlay::train
