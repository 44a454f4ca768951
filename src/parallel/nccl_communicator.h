#pragma once

#include "parallel/host_communicator.h"

namespace inlay::parallel {

// Exchanges tensors in the memory of GPUs through NCCL, in Lane::network, and those in host memory through the
// communicator that it stands on. NCCL is loaded here; where it is missing or fails, that is a UserError with its own
// words. Every rank has bound its GPU before (backend/cuda/context.h).
std::shared_ptr<Communicator> nccl_communicator(std::shared_ptr<HostCommunicator> host);

}  // namespace inlay::parallel
