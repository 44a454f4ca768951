#include "backend/exec.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "backend/cpu/parallel.h"
#include "backend/cuda/context.h"
#include "core/console.h"

namespace inlay::backend {

// The region behind an arena: one allocation on the GPU, or anonymous pages on the host, pinned where a GPU copies from
// them.
struct Exec::Memory {
  enum class Kind : std::uint8_t { device, host, pinned };
  Kind kind;
  void* base = nullptr;
  std::size_t bytes = 0;

  Memory(Kind what, std::size_t wanted) : kind(what), bytes(wanted) {
    if (bytes == 0) return;
    if (kind == Kind::device) {
      base = cuda::allocate(bytes);
      return;
    }
    base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      base = nullptr;
      user_error("the system refused {} of memory: {}", format_bytes(bytes), std::strerror(errno));
    }
    ::madvise(base, bytes, MADV_HUGEPAGE);
    if (kind == Kind::pinned) pin();
  }
  ~Memory() {
    if (base == nullptr) return;
    if (kind == Kind::device) {
      cuda::deallocate(base);
      return;
    }
    if (kind == Kind::pinned) cuda::unpin(base);
    ::munmap(base, bytes);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

 private:
  // Pinning brings the pages into being one after the other; touching them on all cores first is many times faster.
  void pin() {
    constexpr std::int64_t page = 4096;
    const auto pages = static_cast<std::int64_t>(bytes) / page;
    cpu::parallel_for(pages, 4096, [this](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) static_cast<volatile char*>(base)[i * page] = 0;
    });
    try {
      cuda::pin(base, bytes);
    } catch (...) {
      ::munmap(base, bytes);
      throw;
    }
  }
};

MessageSink messages_to(Console& console) {
  return [&console](Message kind, std::string_view text) {
    kind == Message::note ? console.line(text) : console.status(text);
  };
}

Exec::Exec(Device device, Mode mode) : device_(device), mode_(mode), cost_(std::make_shared<Cost>()) {}
Exec::Exec(Exec&&) noexcept = default;
Exec& Exec::operator=(Exec&&) noexcept = default;
Exec::~Exec() = default;

Exec Exec::planner(Device device, std::size_t capacity) {
  Exec exec(device, Mode::plan);
  exec.arena_ = std::make_unique<Arena>(std::string(name_of(device)), capacity);
  exec.host_.reset(new Exec(Device::cpu, Mode::plan));
  exec.host_->arena_ = std::make_unique<Arena>("host");
  exec.host_->cost_ = exec.cost_;
  return exec;
}

Exec Exec::runner(Device device, std::size_t arena_bytes, std::size_t host_bytes) {
  Exec exec(device, Mode::run);
  const bool gpu = device == Device::cuda;
  if (gpu) exec.cuda_ = cuda::make_context(cuda::Precedence::first);
  exec.memory_ = std::make_unique<Memory>(gpu ? Memory::Kind::device : Memory::Kind::host, arena_bytes);
  exec.host_.reset(new Exec(Device::cpu, Mode::run));
  exec.host_->memory_ = std::make_unique<Memory>(gpu ? Memory::Kind::pinned : Memory::Kind::host, host_bytes);
  exec.host_->arena_ = std::make_unique<Arena>("host", exec.host_->memory_->base, host_bytes);
  exec.arena_ = std::make_unique<Arena>(std::string(name_of(device)), exec.memory_->base, arena_bytes);
  return exec;
}

Exec Exec::guest(Device device) { return runner(device, 0); }

void Exec::lend(void* memory, std::size_t bytes, void* stream) {
  arena_ = std::make_unique<Arena>(std::string(name_of(device_)), memory, bytes);
  if (on_cuda()) cuda::set_stream(cuda(), stream);
}

Exec Exec::beside(std::size_t arena_bytes) {
  Exec exec(device_, mode_);
  exec.messages_ = messages_;
  exec.cost_ = cost_;
  exec.host_ = host_;
  constexpr const char* name = "work beside";
  const View memory = arena().keep(MemoryClass::workspace, name, DType::u8, {static_cast<std::int64_t>(arena_bytes)});
  if (planning()) {
    exec.arena_ = std::make_unique<Arena>(name, arena_bytes);
    return exec;
  }
  if (on_cuda()) exec.cuda_ = cuda::make_context(cuda::Precedence::last);
  exec.arena_ = std::make_unique<Arena>(name, memory.data(), arena_bytes);
  return exec;
}

void Exec::say(Message kind, std::string_view text) const {
  if (messages_) return messages_(kind, text);
  if (kind == Message::note) fmt::print(stderr, "inlay: {}\n", text);
}

void Exec::count(double Work::*kind, double amount) {
  if (planning()) cost_->parts_[static_cast<std::size_t>(cost_->part_)].*kind += cost_->share_ * amount;
}

void Exec::count_product(DType operands, std::int64_t m, std::int64_t n, std::int64_t k) {
  if (!planning()) return;
  Work& work = cost_->parts_[static_cast<std::size_t>(cost_->part_)];
  work.products[static_cast<std::size_t>(operands)] +=
      cost_->share_ * 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

void Exec::count_bytes(std::initializer_list<ConstView> moved) {
  if (!planning()) return;
  const bool is_host = host_ == nullptr;
  for (const ConstView& view : moved)
    count(is_host ? &Work::host_bytes : &Work::bytes, static_cast<double>(view.bytes()));
}

CostScope::CostScope(Exec& exec, StepPart part)
    : cost_(*exec.cost_), part_before_(std::exchange(cost_.part_, part)), share_before_(cost_.share_) {}
CostScope::CostScope(Exec& exec, double share)
    : cost_(*exec.cost_), part_before_(cost_.part_), share_before_(std::exchange(cost_.share_, cost_.share_ * share)) {}
CostScope::~CostScope() {
  cost_.part_ = part_before_;
  cost_.share_ = share_before_;
}

cuda::Context& Exec::cuda() {
  INLAY_ASSERT(cuda_ != nullptr, "this execution has no GPU");
  return *cuda_;
}

void Exec::upload(View to, const void* from) {
  INLAY_ASSERT(to.contiguous(), "upload into a strided view {}", to.shape().str());
  if (on_cuda()) count(&Work::to_device, static_cast<double>(to.bytes()));
  if (planning() || to.bytes() == 0) return;
  if (on_cuda()) {
    cuda::copy_to_device(cuda(), to.data(), from, to.bytes());
  } else {
    std::memcpy(to.data(), from, to.bytes());
  }
}

void Exec::download(void* to, ConstView from) {
  INLAY_ASSERT(from.contiguous(), "download from a strided view {}", from.shape().str());
  if (on_cuda()) count(&Work::to_host, static_cast<double>(from.bytes()));
  if (planning() || from.bytes() == 0) return;
  if (on_cuda()) {
    cuda::copy_to_host(cuda(), to, from.data(), from.bytes());
  } else {
    std::memcpy(to, from.data(), from.bytes());
  }
}

void Exec::fill_zero(View view) {
  INLAY_ASSERT(view.contiguous(), "fill of a strided view {}", view.shape().str());
  count_bytes({view});
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
