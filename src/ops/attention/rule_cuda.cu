#include "ops/attention/rule_cuda.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "backend/cuda/context_internal.h"
#include "backend/cuda/runtime_compiler.h"
#include "core/environment.h"
#include "ops/attention/plain_cuda.h"
#include "ops/attention/rules/cuda_text.h"
#include "ops/attention/rules/device_files.h"
#include "ops/attention/rules/flash_task.h"

namespace inlay::ops::cuda {

namespace {

using backend::cuda::check;
using backend::cuda::gpu;
using backend::cuda::GpuContext;
using backend::cuda::stream_of;
using rules::Pass;

// A pass of a rule as it lies on the device; without kernels where it could not be compiled.
struct Program {
  cudaLibrary_t code = nullptr;
  cudaKernel_t forward = nullptr, query_gradients = nullptr, key_gradients = nullptr, value_gradients = nullptr;
  explicit operator bool() const { return code != nullptr; }
};

// All programs of a GPU. A rule that could not be compiled is not tried again.
class Programs {
 public:
  explicit Programs(GpuContext& gpu) {
    const cudaDeviceProp& device = gpu.properties();
    able_ = device.major >= 8;
    shared_bytes_ = static_cast<std::int64_t>(device.sharedMemPerBlockOptin);
    // Products of a warpgroup exist in code for sm_90a alone.
    architecture_ = fmt::format("sm_{}{}{}", device.major, device.minor, device.major == 9 ? "a" : "");
    if (environment("INLAY_ATTENTION_PRODUCTS") == "warp") definitions_.push_back("INLAY_WITHOUT_WGMMA");
  }
  ~Programs() {
    for (auto& [key, program] : programs_) {
      if (program) cudaLibraryUnload(program.code);
    }
  }
  Programs(const Programs&) = delete;
  Programs& operator=(const Programs&) = delete;

  bool able(std::int64_t shared_bytes) const { return able_ && shared_bytes <= shared_bytes_; }

  const Program& find(Exec& exec, const AttentionRule& rule, Pass pass, int head_size) {
    const auto [at, made] = programs_.try_emplace(Key{rule.id(), pass, head_size});
    if (made) at->second = make(exec, rule, pass, head_size);
    return at->second;
  }

 private:
  using Key = std::tuple<std::uint64_t, Pass, int>;

  Program make(Exec& exec, const AttentionRule& rule, Pass pass, int head_size) {
    const backend::cuda::CompiledCode compiled = backend::cuda::compile_at_run_time(
        {.what = fmt::format("attention's {} pass for heads of {}", pass == Pass::forward ? "forward" : "backward",
                             head_size),
         .text = rules::cuda_program(rule, pass, head_size),
         .files = rules::device_files(),
         .architecture = architecture_,
         .definitions = definitions_},
        [&](std::string_view line) { exec.say(backend::Message::progress, line); });
    Program program;
    if (compiled.code.empty()) {
      warn(exec, compiled.error);
      return program;
    }
    const cudaError_t status =
        cudaLibraryLoadData(&program.code, compiled.code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (status != cudaSuccess) {
      cudaGetLastError();  // it is dealt with
      warn(exec, cudaGetErrorString(status));
      return {};
    }
    const auto kernel = [&](const char* name) {
      cudaKernel_t result = nullptr;
      check(cudaLibraryGetKernel(&result, program.code, name), "attention");
      return result;
    };
    if (pass == Pass::forward) {
      program.forward = kernel("attention_forward");
    } else {
      program.query_gradients = kernel("attention_query_gradients");
      program.key_gradients = kernel("attention_key_gradients");
      if (rules::gradients_apart(head_size)) program.value_gradients = kernel("attention_value_gradients");
    }
    return program;
  }

  void warn(Exec& exec, std::string_view reason) {
    if (std::exchange(warned_, true)) return;
    exec.say(
        backend::Message::note,
        fmt::format("warning: attention by a rule is interpreted, and slow: its kernels did not compile ({})", reason));
  }

  bool able_ = false, warned_ = false;
  std::int64_t shared_bytes_ = 0;
  std::string architecture_;
  std::vector<std::string> definitions_;
  std::map<Key, Program> programs_;
};

// Rules made so far for causal attention within a window.
struct CausalRules {
  explicit CausalRules(GpuContext&) {}
  std::map<std::int64_t, std::shared_ptr<const AttentionRule>> by_window;
};

flash::Tokens tokens_of(const ConstView& view) {
  return {static_cast<unsigned short*>(const_cast<void*>(view.data())), view.stride(0), view.stride(1)};
}

flash::Task task_of(const AttentionTensors& tensors, const AttentionSpec& spec) {
  flash::Task task{};
  task.q = tokens_of(tensors.q);
  task.k = tokens_of(tensors.k);
  task.v = tokens_of(tensors.v);
  task.out = tokens_of(tensors.out);
  task.lse = static_cast<float*>(tensors.lse.data());
  task.lse_stride = tensors.lse.stride(0);
  task.cu_seqlens = static_cast<const int*>(spec.cu_seqlens.data());
  task.prefix_lengths = static_cast<const int*>(spec.prefix_lengths.data());
  task.head_bias = static_cast<const float*>(spec.head_bias.data());
  task.documents = static_cast<int>(spec.cu_seqlens.dim(0)) - 1;
  task.heads = static_cast<int>(tensors.q.dim(1));
  task.kv_heads = static_cast<int>(tensors.k.dim(1));
  task.scale = spec.scale;
  return task;
}

// Shared memory of the kernels: what they hold themselves, their tiles, and the list of a document's tiles.
constexpr std::int64_t static_bytes = 1024;
struct SharedBytes {
  std::int64_t forward = 0, query_gradients = 0, key_gradients = 0;  // 0: there are no kernels for such a batch
  SharedBytes(std::int64_t head_size, std::int64_t tokens) {
    switch (head_size) {
      case 64: set<64>(tokens); break;
      case 96: set<96>(tokens); break;
      case 128: set<128>(tokens); break;
      case 256: set<256>(tokens); break;
      default: break;
    }
  }

 private:
  template <int head_size>
  void set(std::int64_t tokens) {
    using Tiling = flash::Tiling<head_size>;
    static_assert(Tiling::gradients_apart == (head_size > 128));
    constexpr std::int64_t most_tiles = 1 << 15;  // see flash::partial_bit
    if (tokens > most_tiles * Tiling::narrowest_tile) return;
    const std::int64_t more = static_bytes + (tokens / Tiling::narrowest_tile + 8) * 2;
    forward = Tiling::forward_bytes + more;
    query_gradients = Tiling::query_gradient_bytes + more;
    key_gradients = Tiling::key_gradient_bytes + more;
  }
};

// The program, or none where the tensors or the GPU are not for it.
const Program* program_of(Exec& exec, Pass pass, const AttentionTensors& tensors, const AttentionSpec& spec,
                          std::int64_t shared_bytes) {
  if (!(spec.scale > 0) || shared_bytes == 0) return nullptr;
  auto& programs = gpu(exec).part<Programs>();
  if (!programs.able(shared_bytes)) return nullptr;
  const Program& program = programs.find(exec, *spec.rule, pass, static_cast<int>(tensors.q.dim(2)));
  return program ? &program : nullptr;
}

void launch(Exec& exec, cudaKernel_t kernel, flash::Task& task, std::int64_t tokens, std::int64_t heads,
            std::int64_t shared_bytes) {
  const auto dynamic_bytes = static_cast<std::size_t>(shared_bytes - static_bytes);
  const void* function = reinterpret_cast<const void*>(kernel);
  check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(dynamic_bytes)),
        "attention");
  const auto tiles = static_cast<unsigned>(tokens / flash::block_rows + task.documents);  // see find_tile
  void* arguments[] = {&task};
  check(cudaLaunchKernel(function, dim3(tiles, static_cast<unsigned>(heads)), dim3(flash::threads), arguments,
                         dynamic_bytes, stream_of(exec)),
        "attention");
}

}  // namespace

const AttentionRule& causal_rule(Exec& exec, std::int64_t window) {
  auto& rule = gpu(exec).part<CausalRules>().by_window[window];
  if (rule == nullptr) {
    rule = AttentionRule::parse(window == 0 ? "causal" : fmt::format("causal and window({})", window));
  }
  return *rule;
}

bool in_eights(std::initializer_list<ConstView> views) {
  return std::ranges::all_of(views, [](const ConstView& view) {
    return view.dtype() == DType::bf16 && view.dim(2) % 8 == 0 && view.stride(0) % 8 == 0 &&
           (view.dim(1) == 1 || view.stride(1) % 8 == 0) && reinterpret_cast<std::uintptr_t>(view.data()) % 16 == 0;
  });
}

bool compiled_attention_forward(Exec& exec, const AttentionTensors& tensors, const AttentionSpec& spec) {
  if (!in_eights({tensors.q, tensors.k, tensors.v, tensors.out})) return false;
  const std::int64_t tokens = tensors.q.dim(0);
  const SharedBytes bytes(tensors.q.dim(2), tokens);
  const Program* program = program_of(exec, Pass::forward, tensors, spec, bytes.forward);
  if (program == nullptr) return false;
  flash::Task task = task_of(tensors, spec);
  launch(exec, program->forward, task, tokens, task.heads, bytes.forward);
  return true;
}

bool compiled_attention_backward(Exec& exec, const AttentionGrads& grads, ConstView dout,
                                 const AttentionTensors& tensors, const AttentionSpec& spec, float* delta) {
  if (!in_eights({tensors.q, tensors.k, tensors.v, tensors.out, dout, grads.dq, grads.dk, grads.dv})) return false;
  const std::int64_t tokens = tensors.q.dim(0);
  const SharedBytes bytes(tensors.q.dim(2), tokens);
  const Program* program =
      program_of(exec, Pass::backward, tensors, spec, std::max(bytes.query_gradients, bytes.key_gradients));
  if (program == nullptr) return false;
  plain_attention_delta(exec, dout, tensors, spec, delta);
  flash::Task task = task_of(tensors, spec);
  task.dout = tokens_of(dout);
  task.dq = tokens_of(grads.dq);
  task.dk = tokens_of(grads.dk);
  task.dv = tokens_of(grads.dv);
  task.delta = delta;
  launch(exec, program->key_gradients, task, tokens, task.kv_heads, bytes.key_gradients);
  if (program->value_gradients != nullptr) {
    launch(exec, program->value_gradients, task, tokens, task.kv_heads, bytes.key_gradients);
  }
  launch(exec, program->query_gradients, task, tokens, task.heads, bytes.query_gradients);
  return true;
}

}  // namespace inlay::ops::cuda
