#include "backend/cuda/matmul.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <list>
#include <optional>
#include <vector>

#include "backend/cuda/context_internal.h"
#include "backend/cuda/matmul_choices.h"
#include "backend/cuda/thin_matmul.h"

// cuBLASLt speaks column-major. A row-major C is, read column-major, Cᵀ = op(B)ᵀ op(A)ᵀ; so B is handed over as the
// first operand and A as the second, and nothing is transposed in memory. Keys and plans below are in cuBLASLt's terms.
namespace inlay::backend::cuda {

namespace {

constexpr int max_candidates = 8;
constexpr std::size_t max_plans = 512;
constexpr double tuned_flops = 2e9;       // below this, launch cost hides whatever tuning could find
constexpr float worth_switching = 0.98f;  // of the first candidate's time: a choice that holds on other days too

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    case DType::e4m3: return CUDA_R_8F_E4M3;
    case DType::e5m2: return CUDA_R_8F_E5M2;
    default: INLAY_ASSERT(false, "matmul: no such product in {}", name_of(dtype)); return CUDA_R_32F;
  }
}

std::int32_t scale_mode(std::int64_t scaling) {
  switch (static_cast<Fp8Scaling>(scaling)) {
    case Fp8Scaling::tensor: return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case Fp8Scaling::row: return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case Fp8Scaling::vector: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case Fp8Scaling::square: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  }
  return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}

// What changes from call to call.
struct Call {
  const void* a;
  const void* b;
  void* c;
  const void* alpha;
  const void* beta;
  void* workspace;
  std::size_t workspace_bytes;
  Arena* arena;                                         // for tuning
  const void *a_scales = nullptr, *b_scales = nullptr;  // of fp8
};

// The descriptors of one product, and the algorithm that computes it.
struct Plan {
  MatmulKey key;
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  explicit Plan(const MatmulKey& wanted);
  void bind(const Call& call) const;  // the scales of fp8
  ~Plan() {
    if (c != nullptr) cublasLtMatrixLayoutDestroy(c);
    if (b != nullptr) cublasLtMatrixLayoutDestroy(b);
    if (a != nullptr) cublasLtMatrixLayoutDestroy(a);
    if (op != nullptr) cublasLtMatmulDescDestroy(op);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
};

template <class Value>
void set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t attribute, Value value) {
  check(cublasLtMatmulDescSetAttribute(op, attribute, &value, sizeof value), "matmul descriptor");
}

cublasLtMatrixLayout_t layout(std::int64_t type, std::int64_t rows, std::int64_t cols, std::int64_t ld) {
  cublasLtMatrixLayout_t result = nullptr;
  check(cublasLtMatrixLayoutCreate(&result, data_type(static_cast<DType>(type)), static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(cols), ld),
        "matmul layout");
  return result;
}

Plan::Plan(const MatmulKey& wanted) : key(wanted) {
  check(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F), "matmul descriptor");
  set<std::int32_t>(op, CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_a != 0 ? CUBLAS_OP_T : CUBLAS_OP_N);
  set<std::int32_t>(op, CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_b != 0 ? CUBLAS_OP_T : CUBLAS_OP_N);
  set<std::int32_t>(op, CUBLASLT_MATMUL_DESC_POINTER_MODE,
                    key.device_scalars != 0 ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST);
  if (key.scaled()) {
    set<std::int32_t>(op, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(key.scale_a));
    set<std::int32_t>(op, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(key.scale_b));
    set<std::int8_t>(op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, key.fast_sums != 0 ? 1 : 0);
  }
  const auto [a_rows, a_cols] = key.transpose_a != 0 ? std::pair(key.k, key.m) : std::pair(key.m, key.k);
  const auto [b_rows, b_cols] = key.transpose_b != 0 ? std::pair(key.n, key.k) : std::pair(key.k, key.n);
  a = layout(key.in_a, a_rows, a_cols, key.lda);
  b = layout(key.in_b, b_rows, b_cols, key.ldb);
  c = layout(key.out, key.m, key.n, key.ldc);
}

void Plan::bind(const Call& call) const {
  if (!key.scaled()) return;
  set(op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.a_scales);
  set(op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.b_scales);
}

struct Candidate {
  cublasLtMatmulAlgo_t algorithm;
  float milliseconds = std::numeric_limits<float>::infinity();
};

// Plans by key, the least recently used dropped first, and the constants that device scalars point at.
class MatmulCache {
 public:
  explicit MatmulCache(GpuContext& gpu);
  ~MatmulCache() { cudaFree(constants_); }
  MatmulCache(const MatmulCache&) = delete;
  MatmulCache& operator=(const MatmulCache&) = delete;

  // The key's plan; made, and where it pays tuned, on its first call. The call's C is left as it was if beta reads it.
  const Plan& plan(const MatmulKey& key, const Call& call);
  void run(const MatmulKey& key, const Call& call);
  cublasStatus_t launch(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Call& call, void* d);

  const float* device_zero() const { return constants_; }
  const float* device_one() const { return constants_ + 1; }
  float* device_product() const { return constants_ + 2; }

 private:
  using Candidates = std::vector<Candidate>;

  Candidates heuristics(const Plan& plan, const MatmulKey& key);
  cublasLtMatmulAlgo_t choose(const Plan& plan, const MatmulKey& key, const Call& call);
  bool usable(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const MatmulKey& key);
  cublasLtMatmulAlgo_t choice_without_reading(const Plan& plan, const MatmulKey& key,
                                              const cublasLtMatmulAlgo_t& otherwise);
  std::optional<cublasLtMatmulAlgo_t> fastest(const Plan& plan, Candidates candidates, const MatmulKey& key,
                                              const Call& call);
  float milliseconds(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Call& call, void* d, int times);

  GpuContext& gpu_;
  MatmulChoices choices_;
  float* constants_ = nullptr;
  std::list<Plan> plans_;  // most recently used first
  std::unordered_map<MatmulKey, std::list<Plan>::iterator, MatmulKeyHash> index_;
};

// Two GPUs that answer to one name but differ in multiprocessors must not share choices.
std::string device_key(const GpuContext& gpu) {
  return fmt::format("{}-{}-{}", gpu.properties().name, gpu.multiprocessors(), cublasLtGetVersion());
}

MatmulCache::MatmulCache(GpuContext& gpu) : gpu_(gpu), choices_(device_key(gpu)) {
  const float values[3] = {0.0f, 1.0f, 0.0f};
  check(cudaMalloc(&constants_, sizeof values), "matmul constants");
  check(cudaMemcpyAsync(constants_, values, sizeof values, cudaMemcpyHostToDevice, gpu.stream()), "matmul constants");
  check(cudaStreamSynchronize(gpu.stream()), "matmul constants");
}

const Plan& MatmulCache::plan(const MatmulKey& key, const Call& call) {
  if (const auto found = index_.find(key); found != index_.end()) {
    plans_.splice(plans_.begin(), plans_, found->second);
    return plans_.front();
  }
  std::list<Plan> made;
  made.emplace_front(key);
  made.front().bind(call);  // the library proposes nothing to a product whose scales it does not see
  made.front().algorithm = choose(made.front(), key, call);
  if (plans_.size() == max_plans) {
    index_.erase(plans_.back().key);
    plans_.pop_back();
  }
  plans_.splice(plans_.begin(), made);
  index_[key] = plans_.begin();
  return plans_.front();
}

void MatmulCache::run(const MatmulKey& key, const Call& call) {
  const Plan& found = plan(key, call);
  check(launch(found, found.algorithm, call, call.c), "matmul");
}

cublasStatus_t MatmulCache::launch(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Call& call, void* d) {
  plan.bind(call);
  return cublasLtMatmul(gpu_.cublaslt_handle(), plan.op, call.alpha, call.a, plan.a, call.b, plan.b, call.beta, call.c,
                        plan.c, d, plan.c, &algorithm, call.workspace, call.workspace_bytes, gpu_.stream());
}

// cuBLASLt's own proposals, best first. Split-K is welcome where its parts are summed in fp32 in the workspace, in a
// fixed order; the schemes that sum in the output's dtype are not.
MatmulCache::Candidates MatmulCache::heuristics(const Plan& plan, const MatmulKey& key) {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "matmul preference");
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, cublasStatus_t (*)(cublasLtMatmulPreference_t)> owner(
      preference, &cublasLtMatmulPreferenceDestroy);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value), "matmul preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(key.workspace));
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(key.align_a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(key.align_b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(key.align_c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(key.align_c));

  cublasLtMatmulHeuristicResult_t results[max_candidates];
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(gpu_.cublaslt_handle(), plan.op, plan.a, plan.b, plan.c,
                                                               plan.c, preference, max_candidates, results, &count);
  check(status,
        fmt::format("matmul {}x{}x{} of {}: no algorithm", key.m, key.n, key.k, name_of(static_cast<DType>(key.in_a))));
  Candidates candidates;
  for (int i = 0; i < count; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) candidates.push_back({results[i].algo});
  }
  INLAY_ASSERT(!candidates.empty(), "matmul {}x{}x{}: cuBLASLt proposes no algorithm", key.m, key.n, key.k);
  return candidates;
}

// A choice made for another extent of the same class, or read from a file, need not fit.
bool MatmulCache::usable(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const MatmulKey& key) {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(gpu_.cublaslt_handle(), plan.op, plan.a, plan.b, plan.c, plan.c, &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.state == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= static_cast<std::size_t>(key.workspace);
}

cublasLtMatmulAlgo_t MatmulCache::choose(const Plan& plan, const MatmulKey& key, const Call& call) {
  const bool large =
      2.0 * static_cast<double>(key.m) * static_cast<double>(key.n) * static_cast<double>(key.k) > tuned_flops;
  const MatmulKey wanted = key.rounded();
  if (large && choices_.enabled()) {
    if (const auto known = choices_.find(wanted)) {
      const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(*known);
      if (usable(plan, algorithm, key)) return algorithm;
      return heuristics(plan, key).front().algorithm;
    }
  }
  const Candidates candidates = heuristics(plan, key);
  if (!large || !choices_.enabled()) return candidates.front().algorithm;
  const auto timed = fastest(plan, candidates, key, call);
  const cublasLtMatmulAlgo_t best = timed ? *timed : choice_without_reading(plan, key, candidates.front().algorithm);
  const auto kept = choices_.remember(wanted, std::bit_cast<AlgorithmBits>(best));
  if (!kept) return candidates.front().algorithm;  // could not be written: then choose as every other run will
  const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(*kept);
  return usable(plan, algorithm, key) ? algorithm : candidates.front().algorithm;
}

// What was found fastest for the same product that writes C without reading it: most that add to a C have begun it so.
cublasLtMatmulAlgo_t MatmulCache::choice_without_reading(const Plan& plan, const MatmulKey& key,
                                                         const cublasLtMatmulAlgo_t& otherwise) {
  MatmulKey writes = key.rounded();
  writes.reads_c = 0;
  const auto known = choices_.find(writes);
  if (!known) return otherwise;
  const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(*known);
  return usable(plan, algorithm, key) ? algorithm : otherwise;
}

// Times the candidates on the call's own operands. Where beta is 0 they write into C, which the call itself overwrites
// next; where C is read it must stay as it is, and they write into what the arena has left. A plan holds no room for
// that: where it does not suffice, nothing is timed.
std::optional<cublasLtMatmulAlgo_t> MatmulCache::fastest(const Plan& plan, Candidates candidates, const MatmulKey& key,
                                                         const Call& call) {
  void* d = call.c;
  const ScratchScope scope(*call.arena);
  if (key.reads_c != 0) {
    const std::int64_t elements = (key.n - 1) * key.ldc + key.m;
    const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(static_cast<DType>(key.out));
    if (call.arena->capacity() - call.arena->used() < bytes + Arena::alignment) return std::nullopt;
    d = call.arena->scratch("a product that is tried", static_cast<DType>(key.out), {elements}).data();
  }
  const float first = milliseconds(plan, candidates.front().algorithm, call, d, 1);
  const int times = std::clamp(static_cast<int>(10.0f / std::max(first, 1e-3f)), 1, 20);
  // Two rounds, so that a clock that drops half way does not decide; the better of the two counts.
  for (int round = 0; round < 2; ++round) {
    for (Candidate& candidate : candidates) {
      candidate.milliseconds =
          std::min(candidate.milliseconds, milliseconds(plan, candidate.algorithm, call, d, times));
    }
  }
  const auto faster = [](const Candidate& x, const Candidate& y) { return x.milliseconds < y.milliseconds; };
  const auto winner = std::min_element(candidates.begin(), candidates.end(), faster);
  const bool pays = winner->milliseconds < worth_switching * candidates.front().milliseconds;
  return pays ? winner->algorithm : candidates.front().algorithm;
}

// The mean of some launches after a first one; infinite where the algorithm does not run after all.
float MatmulCache::milliseconds(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Call& call, void* d,
                                int times) {
  constexpr float infinite = std::numeric_limits<float>::infinity();
  if (launch(plan, algorithm, call, d) != CUBLAS_STATUS_SUCCESS) {
    cudaGetLastError();
    return infinite;
  }
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "matmul tuning");
  check(cudaEventCreate(&end), "matmul tuning");
  check(cudaEventRecord(begin, gpu_.stream()), "matmul tuning");
  for (int i = 0; i < times; ++i) check(launch(plan, algorithm, call, d), "matmul tuning");
  check(cudaEventRecord(end, gpu_.stream()), "matmul tuning");
  check(cudaEventSynchronize(end), "matmul tuning");
  float elapsed = 0;
  check(cudaEventElapsedTime(&elapsed, begin, end), "matmul tuning");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return elapsed / static_cast<float>(times);
}

// Alignment in bytes, at most 16: more helps no kernel, and a tensor that moves in its arena keeps its algorithm, hence
// its bits.
std::int64_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return static_cast<std::int64_t>(std::min<std::uintptr_t>(address & -address, 16));
}

MatmulKey key_of(const View& workspace, const View& c, const ConstView& a, Transpose transpose_a, const ConstView& b,
                 Transpose transpose_b, const MatmulScale& scale) {
  MatmulKey key;
  key.m = c.dim(1);
  key.n = c.dim(0);
  key.k = a.dim(transpose_a == Transpose::yes ? 0 : 1);
  // A matrix of one row may carry any stride; the library wants one that covers the row.
  key.lda = std::max(b.ld(), b.dim(1));
  key.ldb = std::max(a.ld(), a.dim(1));
  key.ldc = std::max(c.ld(), c.dim(1));
  key.in_a = key.in_b = static_cast<std::int64_t>(a.dtype());
  key.out = static_cast<std::int64_t>(c.dtype());
  key.transpose_a = transpose_b == Transpose::yes ? 1 : 0;
  key.transpose_b = transpose_a == Transpose::yes ? 1 : 0;
  key.align_a = alignment_of(b.data());
  key.align_b = alignment_of(a.data());
  key.align_c = alignment_of(c.data());
  key.reads_c = scale.beta != 0.0f ? 1 : 0;
  key.device_scalars = scale.device_alpha != nullptr ? 1 : 0;
  key.workspace = static_cast<std::int64_t>(workspace.bytes());
  return key;
}

__global__ void multiply_scalar(float* product, const float* factor, float other) { *product = *factor * other; }

// alpha and beta as the library takes them: from the host, or from the device.
struct Factors {
  const void *alpha, *beta;
};

Factors factors_of(GpuContext& context, MatmulCache& cache, const MatmulScale& scale) {
  if (scale.device_alpha == nullptr) return {&scale.alpha, &scale.beta};
  INLAY_ASSERT(scale.beta == 0.0f || scale.beta == 1.0f, "matmul: beta {} beside a device factor", scale.beta);
  const float* alpha = scale.device_alpha;
  if (scale.alpha != 1.0f) {
    multiply_scalar<<<1, 1, 0, context.stream()>>>(cache.device_product(), scale.device_alpha, scale.alpha);
    check_launch("matmul");
    alpha = cache.device_product();  // one slot is enough: the stream orders its uses
  }
  return {alpha, scale.beta == 0.0f ? cache.device_zero() : cache.device_one()};
}

// An empty sum: C = beta · C.
void scale_only(Exec& exec, View c, const MatmulScale& scale) {
  if (scale.beta == 1.0f) return;
  INLAY_ASSERT(scale.beta == 0.0f, "matmul: an empty product scales C by {}", scale.beta);
  const std::size_t size = size_of(c.dtype()), pitch = static_cast<std::size_t>(c.ld()) * size;
  const auto rows = static_cast<std::size_t>(c.dim(0)), width = static_cast<std::size_t>(c.dim(1)) * size;
  check(cudaMemset2DAsync(c.data(), std::max(pitch, width), 0, width, rows, stream_of(exec)), "matmul");
}

}  // namespace

void matmul(Exec& exec, View workspace, View c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
            MatmulScale scale) {
  if (c.size() == 0) return;
  const MatmulKey key = key_of(workspace, c, a, transpose_a, b, transpose_b, scale);
  if (key.k == 0) return scale_only(exec, c, scale);
  if (thin_matmul(exec, c, a, transpose_a, b, transpose_b, scale)) return;

  GpuContext& context = gpu(exec);
  MatmulCache& cache = context.part<MatmulCache>();
  const Factors factors = factors_of(context, cache, scale);
  cache.run(key, {b.data(), a.data(), c.data(), factors.alpha, factors.beta, workspace.data(), workspace.bytes(),
                  &exec.arena()});
}

void fp8_matmul(Exec& exec, View workspace, View c, const Fp8Matrix& a, const Fp8Matrix& b, MatmulScale scale,
                Fp8Sums sums) {
  MatmulKey key = key_of(workspace, c, a.codes, Transpose::no, b.codes, Transpose::yes, scale);
  key.in_a = static_cast<std::int64_t>(b.codes.dtype());
  key.scale_a = static_cast<std::int64_t>(b.scaling);
  key.scale_b = static_cast<std::int64_t>(a.scaling);
  key.fast_sums = sums == Fp8Sums::fast ? 1 : 0;
  GpuContext& context = gpu(exec);
  MatmulCache& cache = context.part<MatmulCache>();
  const Factors factors = factors_of(context, cache, scale);
  cache.run(key, {b.codes.data(), a.codes.data(), c.data(), factors.alpha, factors.beta, workspace.data(),
                  workspace.bytes(), &exec.arena(), b.scales.data(), a.scales.data()});
}

void copy_rows(Exec& exec, View to, ConstView from) {
  const std::size_t size = size_of(to.dtype());
  check(cudaMemcpy2DAsync(to.data(), static_cast<std::size_t>(to.ld()) * size, from.data(),
                          static_cast<std::size_t>(from.ld()) * size, static_cast<std::size_t>(to.dim(1)) * size,
                          static_cast<std::size_t>(to.dim(0)), cudaMemcpyDeviceToDevice, stream_of(exec)),
        "copying rows");
}

}  // namespace inlay::backend::cuda
