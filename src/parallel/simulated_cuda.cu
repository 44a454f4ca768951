#include "backend/cuda/context_internal.h"
#include "parallel/simulated.h"

namespace inlay::parallel::cuda {

namespace {

using backend::Exec;
using backend::cuda::check;
using backend::cuda::check_launch;
using backend::cuda::gpu;
using backend::cuda::GpuContext;

constexpr int threads = 256, blocks = 32;  // about what NCCL takes of a GPU

struct Mark {
  explicit Mark(GpuContext&) { check(cudaMalloc(&time, sizeof *time), "simulated process"); }
  ~Mark() { cudaFree(time); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  unsigned long long* time = nullptr;
};

__device__ unsigned long long nanoseconds() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void mark_kernel(unsigned long long* time) { *time = nanoseconds(); }

__global__ void wait_kernel(const unsigned long long* time, unsigned long long duration) {
  while (nanoseconds() - *time < duration) __nanosleep(200);
}

template <class T>
__global__ void scale_kernel(T* values, std::int64_t count, double factor) {
  for (std::int64_t i = blockIdx.x * std::int64_t{threads} + threadIdx.x; i < count;
       i += std::int64_t{blocks} * threads) {
    values[i] = static_cast<T>(values[i] * factor);
  }
}

template <class Word>
__global__ void repeat_kernel(Word* whole, std::size_t words, const Word* rows, std::size_t period, std::size_t own) {
  for (std::size_t i = blockIdx.x * std::size_t{threads} + threadIdx.x; i < words; i += std::size_t{blocks} * threads) {
    whole[i] = rows[(i + period - own) % period];
  }
}

cudaStream_t network(Exec& exec) { return gpu(exec).stream(backend::Lane::network); }

template <class Word>
void repeat_words(Exec& exec, View whole, ConstView rows, std::size_t begin) {
  const std::size_t period = rows.bytes() / sizeof(Word);
  repeat_kernel<<<blocks, threads, 0, network(exec)>>>(static_cast<Word*>(whole.data()), whole.bytes() / sizeof(Word),
                                                       static_cast<const Word*>(rows.data()), period,
                                                       begin / sizeof(Word) % period);
  check_launch("simulated process");
}

}  // namespace

void mark_time(Exec& exec) {
  mark_kernel<<<1, 1, 0, network(exec)>>>(gpu(exec).part<Mark>().time);
  check_launch("simulated process");
}

void wait_since_mark(Exec& exec, double seconds) {
  wait_kernel<<<1, 1, 0, network(exec)>>>(gpu(exec).part<Mark>().time, static_cast<unsigned long long>(seconds * 1e9));
  check_launch("simulated process");
}

void scale(Exec& exec, View tensor, double factor) {
  if (tensor.dtype() == DType::f64) {
    scale_kernel<<<blocks, threads, 0, network(exec)>>>(static_cast<double*>(tensor.data()), tensor.size(), factor);
  } else {
    scale_kernel<<<blocks, threads, 0, network(exec)>>>(static_cast<float*>(tensor.data()), tensor.size(), factor);
  }
  check_launch("simulated process");
}

void repeat(Exec& exec, View whole, ConstView rows, std::size_t begin) {
  if (whole.bytes() == 0) return;
  const auto fits = [&](std::size_t word) {
    return (whole.bytes() | rows.bytes() | begin | reinterpret_cast<std::uintptr_t>(whole.data()) |
            reinterpret_cast<std::uintptr_t>(rows.data())) %
               word ==
           0;
  };
  if (fits(sizeof(uint4))) return repeat_words<uint4>(exec, whole, rows, begin);
  if (fits(sizeof(std::uint16_t))) return repeat_words<std::uint16_t>(exec, whole, rows, begin);
  repeat_words<std::uint8_t>(exec, whole, rows, begin);
}

}  // namespace inlay::parallel::cuda
