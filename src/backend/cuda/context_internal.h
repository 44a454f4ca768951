#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <functional>
#include <memory>
#include <string_view>
#include <typeindex>
#include <unordered_map>

#include "backend/cuda/context.h"
#include "backend/exec.h"
#include "backend/lanes.h"

// What the CUDA sources see of the backend: the stream, the library handles, and how a failed call becomes an error.
// Includes CUDA's headers, so only .cu files include it.
namespace inlay::backend::cuda {

// A failed call is a defect of ours (InternalError) that names the op and the library's own words.
void check(cudaError_t status, std::string_view what);
void check(cublasStatus_t status, std::string_view what);
void check(cudnnStatus_t status, std::string_view what);

// After every kernel launch: a bad configuration is reported here, where the op is still known.
inline void check_launch(std::string_view op) { check(cudaGetLastError(), op); }

// The streams and handles of one GPU. All kernels go to one stream, copies beside them to others (backend/lanes.h);
// libraries' handles are made when first asked for.
class GpuContext final : public Context {
 public:
  explicit GpuContext(Precedence precedence);
  ~GpuContext() override;
  GpuContext(const GpuContext&) = delete;
  GpuContext& operator=(const GpuContext&) = delete;

  cudaStream_t stream() const { return stream_; }
  void set_stream(cudaStream_t stream);
  cudaStream_t stream(Lane lane) const;
  const cudaDeviceProp& properties() const { return properties_; }
  int multiprocessors() const { return properties_.multiProcessorCount; }

  cublasLtHandle_t cublaslt_handle();
  cudnnHandle_t cudnn_handle();  // bound to stream()

  // State that an op keeps with the GPU (caches of algorithms, of graphs, constants in device memory): one T, made on
  // the first call as T(GpuContext&), destroyed before the handles and the stream are.
  template <class T>
  T& part() {
    std::shared_ptr<void>& slot = parts_[std::type_index(typeid(T))];
    if (slot == nullptr) slot = std::make_shared<T>(*this);
    return *static_cast<T*>(slot.get());
  }

 private:
  cudaStream_t stream_ = nullptr;  // own_stream_, or somebody else's
  cudaStream_t own_stream_ = nullptr, to_host_ = nullptr, to_device_ = nullptr, network_ = nullptr;
  cudaDeviceProp properties_{};
  cublasLtHandle_t cublaslt_ = nullptr;
  cudnnHandle_t cudnn_ = nullptr;
  std::unordered_map<std::type_index, std::shared_ptr<void>> parts_;
};

GpuContext& gpu(Exec& exec);
inline cudaStream_t stream_of(Exec& exec) { return gpu(exec).stream(); }

}  // namespace inlay::backend::cuda
