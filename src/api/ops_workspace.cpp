#include "api/ops_workspace.h"

#include <cstdlib>
#include <memory>
#include <new>

#include "backend/cuda/context.h"
#include "core/interrupt.h"

namespace inlay::api {

View view(const Tensor& tensor) {
  if (tensor.data == nullptr) return {};
  return View(tensor.data, tensor.dtype, Shape(std::span(tensor.shape.data(), static_cast<std::size_t>(tensor.rank))),
              tensor.strides);
}

namespace {

void check_rank(const char* op, const char* name, const Tensor& tensor) {
  if (tensor.rank < 1 || tensor.rank > Tensor::max_rank) {
    user_error("{}: {} has {} dimensions, expected 1 to {}", op, name, tensor.rank, Tensor::max_rank);
  }
  const auto last = static_cast<std::size_t>(tensor.rank - 1);
  if (tensor.strides[last] != 1 && tensor.shape[last] > 1) {
    user_error("{}: {}: the numbers of its last dimension are not neighbours; make it contiguous", op, name);
  }
}

}  // namespace

void expect(const char* op, const char* name, const Tensor& tensor, DType dtype, const Shape& shape, May may) {
  if (tensor.data == nullptr) {
    if (may == May::be_absent || shape.size() == 0) return;
    user_error("{}: {} is missing", op, name);
  }
  check_rank(op, name, tensor);
  const Shape given = view(tensor).shape();
  if (given != shape) user_error("{}: {} is {}, expected {}", op, name, given.str(), shape.str());
  if (tensor.dtype != dtype) {
    user_error("{}: {} is {}, expected {}", op, name, name_of(tensor.dtype), name_of(dtype));
  }
}

void expect_activation(const char* op, const char* name, const Tensor& tensor, int rank) {
  if (tensor.data == nullptr) user_error("{}: {} is missing, or empty", op, name);
  check_rank(op, name, tensor);
  if (tensor.rank != rank) user_error("{}: {} has {} dimensions, expected {}", op, name, tensor.rank, rank);
  if (tensor.dtype != DType::f32 && tensor.dtype != DType::bf16) {
    user_error("{}: {} is {}, expected fp32 or bf16", op, name, name_of(tensor.dtype));
  }
}

OpsWorkspace::OpsWorkspace(Device device) : device_(device), exec_(backend::Exec::guest(device)) {}

OpsWorkspace::~OpsWorkspace() { device_ == Device::cuda ? backend::cuda::deallocate(memory_) : std::free(memory_); }

void* OpsWorkspace::own(std::size_t bytes) {
  if (bytes <= bytes_) return memory_;
  if (device_ == Device::cuda) {
    exec_.synchronize();
    backend::cuda::deallocate(memory_);
    memory_ = nullptr, bytes_ = 0;
    memory_ = backend::cuda::allocate(bytes);
  } else {
    std::free(memory_);
    bytes_ = 0;
    memory_ = std::malloc(bytes);
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  bytes_ = bytes;
  return memory_;
}

void OpsWorkspace::run(const std::function<void(backend::Exec&)>& work) {
  backend::Exec plan = backend::Exec::planner(device_);
  work(plan);
  std::size_t space = plan.arena().peak() + 2 * Arena::alignment;
  void* memory = take ? take(space) : own(space);
  void* aligned = std::align(Arena::alignment, 0, memory, space);
  exec_.lend(aligned, space, stream);
  const SignalShield shield;
  work(exec_);
}

}  // namespace inlay::api
