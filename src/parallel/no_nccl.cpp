#include "core/error.h"
#include "parallel/nccl_communicator.h"

// Stands in where CUDA, or NCCL's header, was not there at build time.
namespace inlay::parallel {

std::shared_ptr<Communicator> nccl_communicator(std::shared_ptr<HostCommunicator>) {
  user_error(
      "several processes with GPUs need NCCL, and this inlay was built without it; install it (Debian, Ubuntu: "
      "libnccl-dev) and build again");
}

}  // namespace inlay::parallel
