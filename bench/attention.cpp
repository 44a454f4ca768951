#include "ops/attention/attention.h"

#include <cmath>

#include "bench/bench.h"
#include "ops/attention/rules/rule.h"
#include "train/session.h"

namespace inlay::bench {

namespace {

struct AttentionArguments : Common {
  std::int64_t documents = 1, length = 16384, heads = 32, kv_heads = 8, head_dim = 128, window = 0, prefix = 0;
  bool nondeterministic = false;
  std::string mask, score;

  bool ruled() const { return !mask.empty() || !score.empty(); }
};

Report run(const AttentionArguments& a) {
  const auto [device, dtype] = train::resolve_machine(a.device, a.dtype);
  const std::int64_t tokens = a.documents * a.length, width = (a.heads + 2 * a.kv_heads) * a.head_dim;
  std::vector<std::int32_t> cu_seqlens;
  for (std::int64_t d = 0; d <= a.documents; ++d) cu_seqlens.push_back(static_cast<std::int32_t>(d * a.length));

  const auto rule = a.ruled() ? ops::AttentionRule::parse(a.mask, a.score) : nullptr;
  const std::vector<std::int32_t> prefixes(static_cast<std::size_t>(a.documents), static_cast<std::int32_t>(a.prefix));

  double forward = 0, backward = 0;
  const auto work = [&](backend::Exec& exec) {
    Arena& arena = exec.arena();
    const auto take = [&](std::string_view name, DType type, Shape shape) {
      View view = arena.keep(MemoryClass::activations, name, type, shape);
      if (!exec.planning()) fill_random(exec, view, 1.0f, static_cast<std::uint64_t>(shape[1]));
      return view;
    };
    View qkv = take("qkv", dtype, {tokens, width}), dqkv = take("dqkv", dtype, {tokens, width});
    View out = take("out", dtype, {tokens, a.heads * a.head_dim}),
         dout = take("dout", dtype, {tokens, a.heads * a.head_dim});
    View lse = arena.keep(MemoryClass::activations, "lse", DType::f32, {tokens, a.heads});
    View offsets = arena.keep(MemoryClass::batch, "cu_seqlens", DType::i32, {a.documents + 1});
    exec.upload(offsets, cu_seqlens.data());
    View prefix_lengths = arena.keep(MemoryClass::batch, "prefix_lengths", DType::i32, {a.documents});
    exec.upload(prefix_lengths, prefixes.data());
    View bias = arena.keep(MemoryClass::weights, "head_bias", DType::f32, {a.heads});
    if (!exec.planning()) fill_random(exec, bias, 1.0f, 1);
    const auto split = [&](View fused, int part) {
      const std::int64_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
      if (part == 0) return fused.slice_cols(0, q).split_cols(a.heads);
      return fused.slice_cols(q + (part - 1) * kv, q + part * kv).split_cols(a.kv_heads);
    };
    const ops::AttentionTensors tensors = {
        .q = split(qkv, 0), .k = split(qkv, 1), .v = split(qkv, 2), .out = out.split_cols(a.heads), .lse = lse};
    const ops::AttentionSpec spec = {.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim)),
                                     .window = a.window,
                                     .cu_seqlens = offsets,
                                     .host_cu_seqlens = cu_seqlens,
                                     .deterministic = !a.nondeterministic,
                                     .rule = rule.get(),
                                     .prefix_lengths = prefix_lengths,
                                     .head_bias = bias};
    const std::size_t before = arena.used();
    const auto forward_call = [&] { ops::attention_forward(exec, tensors, spec); };
    const auto backward_call = [&] {
      ops::attention_backward(exec, {.dq = split(dqkv, 0), .dk = split(dqkv, 1), .dv = split(dqkv, 2)},
                              dout.split_cols(a.heads), tensors, spec);
    };
    if (exec.planning()) {
      forward_call();
      backward_call();
    } else {
      forward = median_ms(exec, a.iterations, forward_call);
      backward = median_ms(exec, a.iterations, backward_call);
    }
    return before;
  };
  backend::Exec planner = backend::Exec::planner(device);
  const std::size_t before = work(planner);
  backend::Exec exec = backend::Exec::runner(device, planner.arena().peak());
  work(exec);

  const double flops = planner.cost().total().attention;
  return {{"ms", forward + backward},
          {"forward_ms", forward},
          {"backward_ms", backward},
          {"tflops", flops / (forward + backward) * 1e-9},
          {"floor_ms", flops / measured_matmul_rate(device, dtype) * 1e3},
          {"peak_extra_bytes", planner.arena().peak() - before},
          {"documents", a.documents},
          {"length", a.length},
          {"heads", a.heads},
          {"kv_heads", a.kv_heads},
          {"head_dim", a.head_dim},
          {"window", a.window},
          {"mask", a.mask},
          {"score", a.score},
          {"deterministic", !a.nondeterministic},
          {"device", name_of(device)},
          {"dtype", name_of(dtype)}};
}

}  // namespace

Benchmark attention_benchmark() {
  return {"attention", "attention over packed documents, causal or by a rule, forward and backward",
          [](CLI::App& command) -> std::function<Report()> {
            auto a = std::make_shared<AttentionArguments>();
            add_common(command, *a);
            command.add_option("--documents", a->documents)->check(CLI::PositiveNumber);
            command.add_option("--length", a->length)->check(CLI::PositiveNumber);
            command.add_option("--heads", a->heads)->check(CLI::PositiveNumber);
            command.add_option("--kv-heads", a->kv_heads)->check(CLI::PositiveNumber);
            command.add_option("--head-dim", a->head_dim)->check(CLI::PositiveNumber);
            command.add_option("--window", a->window)->check(CLI::NonNegativeNumber);
            command.add_option("--mask", a->mask,
                               "Which pairs are seen, such as \"causal and (window(128) or k < 4)\"");
            command.add_option("--score", a->score, "How scores are changed, such as \"softcap(50)\"");
            command.add_option("--prefix", a->prefix, "Every document's prefix_length")->check(CLI::NonNegativeNumber);
            command.add_flag("--nondeterministic", a->nondeterministic, "Let the backward pass sum in any order");
            return [a] { return run(*a); };
          }};
}

}  // namespace inlay::bench
