#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

// The part of the CUDA backend that compiles without CUDA: host code includes this, and no_cuda.cpp answers it where
// CUDA is not built. What the streams and handles look like is in context_internal.h.
namespace inlay::backend::cuda {

// Owns the streams and handles; the CUDA sources see the real thing as GpuContext (context_internal.h).
class Context {
 public:
  virtual ~Context() = default;
};

bool built();                   // compiled with CUDA
std::string toolkit_version();  // that it was compiled with: "13.0"; empty without CUDA
bool available();               // built, and a GPU answers
std::string device_name();
int compute_capability();          // of the GPU: 90 for an H200
std::string device_description();  // with all that decides about speed: "NVIDIA H200, driver 13.0, CUDA 13.0"
std::size_t device_memory();       // bytes free now
std::size_t device_memory_used();  // bytes taken now, by anybody

// One of several GPUs becomes this process's, before anything is made on it. Threads other than the caller's follow by
// use_bound_device(), which each of them calls before it calls CUDA.
int device_count();  // that this process sees
void bind_device(int index);
void use_bound_device();
struct DeviceAddress {
  std::string identity;  // no other GPU has it
  std::string pci;       // "0000:19:00.0"
};
DeviceAddress device_address();

// Whose kernels start first where those of two contexts wait for room.
enum class Precedence : std::uint8_t { first, last };
std::unique_ptr<Context> make_context(Precedence precedence);
// Kernels go to that stream (a cudaStream_t) from now on, in the place of the context's own.
void set_stream(Context& context, void* stream);
void* allocate(std::size_t bytes);
void deallocate(void* memory);
// Makes host memory fit for copies beside the kernels, and undoes it.
void pin(void* memory, std::size_t bytes);
void unpin(void* memory);
void copy_to_device(Context& context, void* to, const void* from, std::size_t bytes);
void copy_to_host(Context& context, void* to, const void* from, std::size_t bytes);
void fill_zero(Context& context, void* memory, std::size_t bytes);
void synchronize(Context& context);

}  // namespace inlay::backend::cuda
