#pragma once

#include <functional>
#include <memory>

#include "parallel/communicator.h"

namespace inlay::testing {

// Runs body on so many ranks of a run, each a thread of this process; tensors are in host memory. Collectives sum in
// the order of the ranks. Where a rank throws, the others stop waiting for it, and the first one's exception comes out.
void run_ranks(int size, const std::function<void(const std::shared_ptr<parallel::Communicator>& communicator)>& body);

}  // namespace inlay::testing
