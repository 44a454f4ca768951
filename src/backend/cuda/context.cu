#include <cublas_v2.h>

#include <algorithm>
#include <atomic>

#include "backend/cuda/context_internal.h"
#include "core/arena.h"
#include "core/error.h"

namespace inlay::backend::cuda {

void check(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  throw InternalError(
      fmt::format("{}: CUDA error {} ({})", what, cudaGetErrorName(status), cudaGetErrorString(status)));
}

void check(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw InternalError(
      fmt::format("{}: cuBLASLt error {} ({})", what, cublasLtGetStatusName(status), cublasLtGetStatusString(status)));
}

void check(cudnnStatus_t status, std::string_view what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char message[512] = {};
  cudnnGetLastErrorString(message, sizeof message);
  throw InternalError(fmt::format("{}: cuDNN error {} ({})", what, cudnnGetErrorString(status), message));
}

GpuContext::GpuContext(Precedence precedence) {
  int device = 0;
  check(cudaGetDevice(&device), "context");
  check(cudaGetDeviceProperties(&properties_, device), "context");
  check(cudaStreamCreateWithFlags(&to_host_, cudaStreamNonBlocking), "context");
  check(cudaStreamCreateWithFlags(&to_device_, cudaStreamNonBlocking), "context");
  int least = 0, greatest = 0;  // of which the greatest is the smallest number
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "context");
  // Below the network's, where there are priorities between.
  const int first = std::min(least, std::max(least - 1, greatest + 1));
  const int priority = precedence == Precedence::last ? least : first;
  check(cudaStreamCreateWithPriority(&own_stream_, cudaStreamNonBlocking, priority), "context");
  stream_ = own_stream_;
  // Its few blocks start at once: whoever waits for them is another process.
  check(cudaStreamCreateWithPriority(&network_, cudaStreamNonBlocking, greatest), "context");
}

cudaStream_t GpuContext::stream(Lane lane) const {
  switch (lane) {
    case Lane::to_host: return to_host_;
    case Lane::to_device: return to_device_;
    case Lane::network: return network_;
    case Lane::compute: break;
  }
  return stream_;
}

// A destructor does not throw: what fails here fails because the device is already lost, and that was reported before.
GpuContext::~GpuContext() {
  for (const cudaStream_t lane : {own_stream_, to_host_, to_device_, network_}) cudaStreamSynchronize(lane);
  parts_.clear();
  if (cudnn_ != nullptr) cudnnDestroy(cudnn_);
  if (cublaslt_ != nullptr) cublasLtDestroy(cublaslt_);
  for (const cudaStream_t lane : {own_stream_, to_host_, to_device_, network_}) cudaStreamDestroy(lane);
}

void GpuContext::set_stream(cudaStream_t stream) {
  if (stream == stream_) return;
  stream_ = stream;
  if (cudnn_ != nullptr) check(cudnnSetStream(cudnn_, stream_), "cudnnSetStream");
}

cublasLtHandle_t GpuContext::cublaslt_handle() {
  if (cublaslt_ == nullptr) check(cublasLtCreate(&cublaslt_), "cublasLtCreate");
  return cublaslt_;
}

cudnnHandle_t GpuContext::cudnn_handle() {
  if (cudnn_ == nullptr) {
    check(cudnnCreate(&cudnn_), "cudnnCreate");
    check(cudnnSetStream(cudnn_, stream_), "cudnnSetStream");
  }
  return cudnn_;
}

GpuContext& gpu(Exec& exec) { return static_cast<GpuContext&>(exec.cuda()); }

namespace {

// Why there is no GPU to work on; empty when there is one. A missing driver is an answer here, not an error.
std::string no_device_because() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return {};
  cudaGetLastError();  // forget it: the next check must not find this one
  return status == cudaSuccess ? std::string("no GPU was found") : std::string(cudaGetErrorString(status));
}

struct MemoryInfo {
  std::size_t free = 0, total = 0;
};

MemoryInfo memory_info() {
  MemoryInfo info;
  if (no_device_because().empty()) check(cudaMemGetInfo(&info.free, &info.total), "memory_info");
  return info;
}

}  // namespace

void set_stream(Context& context, void* stream) {
  static_cast<GpuContext&>(context).set_stream(static_cast<cudaStream_t>(stream));
}

bool built() { return true; }
std::string toolkit_version() { return fmt::format("{}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10); }
bool available() { return no_device_because().empty(); }

std::string device_name() {
  if (!available()) return "none";
  int device = 0;
  cudaDeviceProp properties{};
  check(cudaGetDevice(&device), "device_name");
  check(cudaGetDeviceProperties(&properties, device), "device_name");
  return properties.name;
}

int compute_capability() {
  if (!available()) return 0;
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "compute_capability");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute_capability");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "compute_capability");
  return 10 * major + minor;
}

std::string device_description() {
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "device_description");
  check(cudaRuntimeGetVersion(&runtime), "device_description");
  const auto version = [](int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); };
  return fmt::format("{}, driver {}, CUDA {}", device_name(), version(driver), version(runtime));
}

std::size_t device_memory() { return memory_info().free; }

std::size_t device_memory_used() {
  const MemoryInfo info = memory_info();
  return info.total - info.free;
}

namespace {
std::atomic<int> bound_device = 0;
}

int device_count() {
  int count = 0;
  if (available()) check(cudaGetDeviceCount(&count), "device_count");
  return count;
}

void bind_device(int index) {
  bound_device = index;
  check(cudaSetDevice(index), "bind_device");
}

void use_bound_device() {
  thread_local bool bound = false;
  if (!bound) check(cudaSetDevice(bound_device), "use_bound_device");
  bound = true;
}

DeviceAddress device_address() {
  int device = 0;
  cudaDeviceProp properties{};
  char pci[32] = {};
  check(cudaGetDevice(&device), "device_address");
  check(cudaGetDeviceProperties(&properties, device), "device_address");
  check(cudaDeviceGetPCIBusId(pci, sizeof pci, device), "device_address");
  return {std::string(properties.uuid.bytes, sizeof properties.uuid.bytes), pci};
}

std::unique_ptr<Context> make_context(Precedence precedence) {
  if (const std::string why = no_device_because(); !why.empty()) {
    user_error("device: cuda was asked for, but no GPU can be used: {} (use device: cpu, or check nvidia-smi)", why);
  }
  return std::make_unique<GpuContext>(precedence);
}

void* allocate(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    const auto [free, total] = memory_info();
    user_error(
        "the GPU ({}) has {} free of {}, and {} were asked for: other processes may hold some of it; see "
        "`inlay plan` for what would fit",
        device_name(), format_bytes(free), format_bytes(total), format_bytes(bytes));
  }
  check(status, fmt::format("allocate {}", format_bytes(bytes)));
  return memory;
}

// Called from destructors, so it does not throw.
void deallocate(void* memory) { cudaFree(memory); }

void pin(void* memory, std::size_t bytes) {
  const cudaError_t status = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
  if (status == cudaSuccess) return;
  cudaGetLastError();
  user_error(
      "the system refused to pin {} of host memory ({}); lower memory.host, or raise the limit of locked memory "
      "(ulimit -l) or of the container",
      format_bytes(bytes), cudaGetErrorString(status));
}

void unpin(void* memory) { cudaHostUnregister(memory); }

void copy_to_device(Context& context, void* to, const void* from, std::size_t bytes) {
  const cudaStream_t stream = static_cast<GpuContext&>(context).stream();
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "copy_to_device");
  check(cudaStreamSynchronize(stream), "copy_to_device");
}

void copy_to_host(Context& context, void* to, const void* from, std::size_t bytes) {
  const cudaStream_t stream = static_cast<GpuContext&>(context).stream();
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "copy_to_host");
  check(cudaStreamSynchronize(stream), "copy_to_host");
}

void fill_zero(Context& context, void* memory, std::size_t bytes) {
  check(cudaMemsetAsync(memory, 0, bytes, static_cast<GpuContext&>(context).stream()), "fill_zero");
}

void synchronize(Context& context) {
  const GpuContext& gpu = static_cast<GpuContext&>(context);
  for (const Lane lane : {Lane::compute, Lane::to_host, Lane::to_device, Lane::network}) {
    check(cudaStreamSynchronize(gpu.stream(lane)), "synchronize");
  }
}

}  // namespace inlay::backend::cuda
