#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <cusolverDn.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include <array>
#include <mutex>
#include <string>
#include <tuple>

#include "core/error.h"

// NVIDIA's libraries are not linked but loaded when the first of their functions is called, so that one program runs
// with a GPU and without. Their functions are defined here, under their own names: each passes its call on.
namespace {

struct Library {
  const char* product;
  std::array<const char*, 2> files;  // of the version that this was compiled with, and of any
  void* handle = nullptr;
  std::once_flag once = {};

  void* symbol(const char* name) {
    std::call_once(once, [this] { load(); });
    void* const found = ::dlsym(handle, name);
    if (found == nullptr) inlay::user_error("{} has no {}; install a newer one", product, name);
    return found;
  }

 private:
  void load() {
    std::string reason;
    for (const std::string folder : {"", "/usr/local/cuda/lib64/", "/opt/cuda/lib64/"}) {
      for (const char* file : files) {
        handle = ::dlopen((folder + file).c_str(), RTLD_NOW | RTLD_GLOBAL);
        if (handle != nullptr) return;
        if (reason.empty()) reason = ::dlerror();
      }
    }
    inlay::user_error("work on a GPU needs {}, which cannot be loaded ({}); install it, or choose device: cpu", product,
                      reason);
  }
};

#define TEXT_OF(number) #number
#define FILE_OF(name, major) name ".so." TEXT_OF(major)
Library cublasLt{"cuBLAS", {FILE_OF("libcublasLt", CUBLAS_VER_MAJOR), "libcublasLt.so"}};
Library cublas{"cuBLAS", {FILE_OF("libcublas", CUBLAS_VER_MAJOR), "libcublas.so"}};
Library cusolver{"cuSOLVER", {FILE_OF("libcusolver", CUSOLVER_VER_MAJOR), "libcusolver.so"}};
Library cudnn{"cuDNN", {FILE_OF("libcudnn", CUDNN_MAJOR), "libcudnn.so"}};
#if CUDART_VERSION >= 13000
Library nvrtc{"NVRTC", {"libnvrtc.so.13", "libnvrtc.so"}};
#else
Library nvrtc{"NVRTC", {"libnvrtc.so.12", "libnvrtc.so"}};
#endif

template <class Function>
struct Signature;
template <class Result, class... Arguments>
struct Signature<Result(Arguments...)> {
  using result = Result;
  template <std::size_t index>
  using argument = std::tuple_element_t<index, std::tuple<Arguments...>>;
};

}  // namespace

#define PARAMETER(name, index) Signature<decltype(name)>::argument<index> a##index
#define PARAMETERS_0(name)
#define ARGUMENTS_0
#define PARAMETERS_1(name) PARAMETER(name, 0)
#define ARGUMENTS_1 a0
#define PARAMETERS_2(name) PARAMETERS_1(name), PARAMETER(name, 1)
#define ARGUMENTS_2 ARGUMENTS_1, a1
#define PARAMETERS_3(name) PARAMETERS_2(name), PARAMETER(name, 2)
#define ARGUMENTS_3 ARGUMENTS_2, a2
#define PARAMETERS_4(name) PARAMETERS_3(name), PARAMETER(name, 3)
#define ARGUMENTS_4 ARGUMENTS_3, a3
#define PARAMETERS_5(name) PARAMETERS_4(name), PARAMETER(name, 4)
#define ARGUMENTS_5 ARGUMENTS_4, a4
#define PARAMETERS_6(name) PARAMETERS_5(name), PARAMETER(name, 5)
#define ARGUMENTS_6 ARGUMENTS_5, a5
#define PARAMETERS_7(name) PARAMETERS_6(name), PARAMETER(name, 6)
#define ARGUMENTS_7 ARGUMENTS_6, a6
#define PARAMETERS_8(name) PARAMETERS_7(name), PARAMETER(name, 7)
#define ARGUMENTS_8 ARGUMENTS_7, a7
#define PARAMETERS_9(name) PARAMETERS_8(name), PARAMETER(name, 8)
#define ARGUMENTS_9 ARGUMENTS_8, a8
#define PARAMETERS_10(name) PARAMETERS_9(name), PARAMETER(name, 9)
#define ARGUMENTS_10 ARGUMENTS_9, a9
#define PARAMETERS_11(name) PARAMETERS_10(name), PARAMETER(name, 10)
#define ARGUMENTS_11 ARGUMENTS_10, a10
#define PARAMETERS_12(name) PARAMETERS_11(name), PARAMETER(name, 11)
#define ARGUMENTS_12 ARGUMENTS_11, a11
#define PARAMETERS_13(name) PARAMETERS_12(name), PARAMETER(name, 12)
#define ARGUMENTS_13 ARGUMENTS_12, a12
#define PARAMETERS_14(name) PARAMETERS_13(name), PARAMETER(name, 13)
#define ARGUMENTS_14 ARGUMENTS_13, a13
#define PARAMETERS_15(name) PARAMETERS_14(name), PARAMETER(name, 14)
#define ARGUMENTS_15 ARGUMENTS_14, a14
#define PARAMETERS_16(name) PARAMETERS_15(name), PARAMETER(name, 15)
#define ARGUMENTS_16 ARGUMENTS_15, a15
#define FORWARD(count, library, name)                                                   \
  extern "C" Signature<decltype(name)>::result name(PARAMETERS_##count(name)) {         \
    static auto* const real = reinterpret_cast<decltype(&name)>(library.symbol(#name)); \
    return real(ARGUMENTS_##count);                                                     \
  }

// clang-format off
FORWARD(1, cublas, cublasCreate_v2)
FORWARD(1, cublas, cublasDestroy_v2)
FORWARD(14, cublas, cublasDgemm_v2)
FORWARD(2, cublas, cublasSetStream_v2)
FORWARD(3, cublas, cublasSetWorkspace_v2)
FORWARD(1, cublasLt, cublasLtCreate)
FORWARD(1, cublasLt, cublasLtDestroy)
FORWARD(1, cublasLt, cublasLtGetStatusName)
FORWARD(1, cublasLt, cublasLtGetStatusString)
FORWARD(0, cublasLt, cublasLtGetVersion)
FORWARD(16, cublasLt, cublasLtMatmul)
FORWARD(8, cublasLt, cublasLtMatmulAlgoCheck)
FORWARD(10, cublasLt, cublasLtMatmulAlgoGetHeuristic)
FORWARD(3, cublasLt, cublasLtMatmulDescCreate)
FORWARD(1, cublasLt, cublasLtMatmulDescDestroy)
FORWARD(4, cublasLt, cublasLtMatmulDescSetAttribute)
FORWARD(1, cublasLt, cublasLtMatmulPreferenceCreate)
FORWARD(1, cublasLt, cublasLtMatmulPreferenceDestroy)
FORWARD(4, cublasLt, cublasLtMatmulPreferenceSetAttribute)
FORWARD(5, cublasLt, cublasLtMatrixLayoutCreate)
FORWARD(1, cublasLt, cublasLtMatrixLayoutDestroy)
FORWARD(2, cudnn, cudnnBackendCreateDescriptor)
FORWARD(1, cudnn, cudnnBackendDestroyDescriptor)
FORWARD(3, cudnn, cudnnBackendExecute)
FORWARD(1, cudnn, cudnnBackendFinalize)
FORWARD(6, cudnn, cudnnBackendGetAttribute)
FORWARD(5, cudnn, cudnnBackendSetAttribute)
FORWARD(1, cudnn, cudnnCreate)
FORWARD(1, cudnn, cudnnDestroy)
FORWARD(1, cudnn, cudnnGetErrorString)
FORWARD(2, cudnn, cudnnGetLastErrorString)
FORWARD(2, cudnn, cudnnGetStream)
FORWARD(0, cudnn, cudnnGetVersion)
FORWARD(2, cudnn, cudnnSetStream)
FORWARD(1, cusolver, cusolverDnCreate)
FORWARD(1, cusolver, cusolverDnCreateParams)
FORWARD(1, cusolver, cusolverDnDestroy)
FORWARD(1, cusolver, cusolverDnDestroyParams)
FORWARD(2, cusolver, cusolverDnSetStream)
FORWARD(16, cusolver, cusolverDnXsyevd)
FORWARD(13, cusolver, cusolverDnXsyevd_bufferSize)
FORWARD(3, nvrtc, nvrtcCompileProgram)
FORWARD(6, nvrtc, nvrtcCreateProgram)
FORWARD(1, nvrtc, nvrtcDestroyProgram)
FORWARD(2, nvrtc, nvrtcGetCUBIN)
FORWARD(2, nvrtc, nvrtcGetCUBINSize)
FORWARD(1, nvrtc, nvrtcGetErrorString)
FORWARD(2, nvrtc, nvrtcGetProgramLog)
FORWARD(2, nvrtc, nvrtcGetProgramLogSize)
FORWARD(2, nvrtc, nvrtcVersion)
// clang-format on
