#include "backend/exec.h"

#include <sys/mman.h>

#include <cstring>

#include "backend/cuda/context.h"

namespace inlay::backend {

// The region behind the arena: anonymous pages on the host, one allocation on the GPU.
struct Exec::Memory {
  Device device;
  void* base = nullptr;
  std::size_t bytes = 0;

  Memory(Device where, std::size_t wanted) : device(where), bytes(wanted) {
    if (bytes == 0) return;
    if (device == Device::cuda) {
      base = cuda::allocate(bytes);
      return;
    }
    base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      base = nullptr;
      user_error("the system refused {} of memory: {}", format_bytes(bytes), std::strerror(errno));
    }
    ::madvise(base, bytes, MADV_HUGEPAGE);
  }
  ~Memory() {
    if (base == nullptr) return;
    if (device == Device::cuda) {
      cuda::deallocate(base);
    } else {
      ::munmap(base, bytes);
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

Exec::Exec(Device device, Mode mode) : device_(device), mode_(mode) {}
Exec::Exec(Exec&&) noexcept = default;
Exec& Exec::operator=(Exec&&) noexcept = default;
Exec::~Exec() = default;

Exec Exec::planner(Device device, std::size_t capacity) {
  Exec exec(device, Mode::plan);
  exec.arena_ = std::make_unique<Arena>(std::string(name_of(device)), capacity);
  return exec;
}

Exec Exec::runner(Device device, std::size_t arena_bytes) {
  Exec exec(device, Mode::run);
  if (device == Device::cuda) exec.cuda_ = cuda::make_context();
  exec.memory_ = std::make_unique<Memory>(device, arena_bytes);
  exec.arena_ = std::make_unique<Arena>(std::string(name_of(device)), exec.memory_->base, arena_bytes);
  return exec;
}

cuda::Context& Exec::cuda() {
  INLAY_ASSERT(cuda_ != nullptr, "this execution has no GPU");
  return *cuda_;
}

void Exec::upload(View to, const void* from) {
  INLAY_ASSERT(to.contiguous(), "upload into a strided view {}", to.shape().str());
  if (planning() || to.bytes() == 0) return;
  if (on_cuda()) {
    cuda::copy_to_device(cuda(), to.data(), from, to.bytes());
  } else {
    std::memcpy(to.data(), from, to.bytes());
  }
}

void Exec::download(void* to, ConstView from) {
  INLAY_ASSERT(from.contiguous(), "download from a strided view {}", from.shape().str());
  if (planning() || from.bytes() == 0) return;
  if (on_cuda()) {
    cuda::copy_to_host(cuda(), to, from.data(), from.bytes());
  } else {
    std::memcpy(to, from.data(), from.bytes());
  }
}

void Exec::fill_zero(View view) {
  INLAY_ASSERT(view.contiguous(), "fill of a strided view {}", view.shape().str());
  if (planning() || view.bytes() == 0) return;
  if (on_cuda()) {
    cuda::fill_zero(cuda(), view.data(), view.bytes());
  } else {
    std::memset(view.data(), 0, view.bytes());
  }
}

void Exec::synchronize() {
  if (!planning() && on_cuda()) cuda::synchronize(cuda());
}

}  // namespace inlay::backend
