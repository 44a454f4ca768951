#include "backend/grouped_matmul.h"
#include "bench/bench.h"
#include "ops/elementwise.h"
#include "ops/expert_glu.h"
#include "ops/moe_route.h"
#include "train/session.h"

namespace inlay::bench {

namespace {

using backend::Grad;
using backend::Transpose;

struct MoeArguments : Common {
  std::int64_t tokens = 16384, hidden = 2880, intermediate = 2880, experts = 32, chosen = 4;
  double skew = 0;
  bool accumulate = false;
};

// A mixture-of-experts block as GPT-OSS has it: router, clamped SwiGLU, biases everywhere. What a training step does
// with it, without norm and residual stream, on tensors that fill_random made.
class Block {
 public:
  Block(backend::Exec& exec, const MoeArguments& a, DType dtype) : exec_(exec), a_(a), dtype_(dtype) {
    const std::int64_t pairs = a.tokens * a.chosen;
    x_ = take("x", dtype, {a.tokens, a.hidden}, 1.0f);
    out_ = take("out", dtype, {a.tokens, a.hidden});
    dout_ = take("dout", dtype, {a.tokens, a.hidden}, 1.0f);
    router_ = take("router", dtype, {a.experts, a.hidden}, 0.02f);
    logits_ = take("logits", DType::f32, {a.tokens, a.experts});
    dlogits_ = take("dlogits", dtype, {a.tokens, a.experts});
    drouter_ = take("router gradient", DType::f32, {a.experts, a.hidden});
    for (std::int64_t e = 0; e < a.experts; ++e) {
      gate_up_.push_back(take("gate and up", dtype, {2 * a.intermediate, a.hidden}, 0.02f));
    }
    for (std::int64_t e = 0; e < a.experts; ++e)
      down_.push_back(take("down", dtype, {a.hidden, a.intermediate}, 0.02f));
    for (std::int64_t e = 0; e < a.experts; ++e) {
      dgate_up_.push_back(take("gate and up gradient", DType::f32, {2 * a.intermediate, a.hidden}));
    }
    for (std::int64_t e = 0; e < a.experts; ++e) {
      ddown_.push_back(take("down gradient", DType::f32, {a.hidden, a.intermediate}));
    }
    gate_up_bias_ = take("gate and up bias", dtype, {a.experts, 2 * a.intermediate}, 0.1f);
    down_bias_ = take("down bias", dtype, {a.experts, a.hidden}, 0.1f);
    dgate_up_bias_ = take("gate and up bias gradient", DType::f32, gate_up_bias_.shape());
    ddown_bias_ = take("down bias gradient", DType::f32, down_bias_.shape());
    bias_ = take("router bias", DType::f32, {a.experts});
    before_ = exec.arena().used();
    experts_ = take("experts", DType::i32, {a.tokens, a.chosen});
    weights_ = take("weights", DType::f32, {a.tokens, a.chosen});
    dweights_ = take("dweights", DType::f32, {a.tokens, a.chosen});
    order_ = {take("offsets", DType::i32, {a.experts + 1}), take("pairs", DType::i32, {pairs}),
              take("rows", DType::i32, {a.tokens, a.chosen})};
    sorted_ = take("sorted", dtype, {pairs, a.hidden});
    other_ = take("answers and their gradient", dtype, {pairs, a.hidden});
    hidden_ = take("gate and up", dtype, {pairs, 2 * a.intermediate});
    act_ = take("activation", dtype, {pairs, a.intermediate});
    rows_ = {.kind = ops::Glu::clamped, .bias = gate_up_bias_, .experts = experts_, .order = order_};
    if (!exec.planning()) set_skew();
  }

  void forward() {
    route();
    gather();
    gate_up();
    glu();
    down();
    combine();
  }
  void backward() {
    spread();
    down_input();
    glu_backward();
    down_gradient();
    bias_gradients();
    gate_up_gradient();
    gate_up_input();
    gather_back();
    route_back();
  }

  // Every stage by itself, in the order of a step.
  std::vector<std::pair<std::string, std::function<void()>>> stages() {
    return {{"route", [this] { route(); }},
            {"gather", [this] { gather(); }},
            {"gate_up", [this] { gate_up(); }},
            {"glu", [this] { glu(); }},
            {"down", [this] { down(); }},
            {"combine", [this] { combine(); }},
            {"combine_backward", [this] { spread(); }},
            {"down_input", [this] { down_input(); }},
            {"glu_backward", [this] { glu_backward(); }},
            {"down_gradient", [this] { down_gradient(); }},
            {"bias_gradients", [this] { bias_gradients(); }},
            {"gate_up_gradient", [this] { gate_up_gradient(); }},
            {"gate_up_input", [this] { gate_up_input(); }},
            {"gather_backward", [this] { gather_back(); }},
            {"route_backward", [this] { route_back(); }}};
  }

  std::size_t before() const { return before_; }
  // Rows of the expert that has most.
  std::int64_t largest_expert() {
    std::vector<std::int32_t> offsets(static_cast<std::size_t>(a_.experts) + 1);
    exec_.download(offsets.data(), order_.offsets);
    std::int32_t most = 0;
    for (std::size_t e = 1; e < offsets.size(); ++e) most = std::max(most, offsets[e] - offsets[e - 1]);
    return most;
  }

 private:
  View take(std::string_view name, DType dtype, Shape shape, float scale = 0) {
    View view = exec_.arena().keep(MemoryClass::activations, name, dtype, shape);
    if (!exec_.planning() && scale > 0) fill_random(exec_, view, scale, seed_++);
    return view;
  }
  // The router's bias falls from expert to expert.
  void set_skew() {
    std::vector<float> bias;
    for (std::int64_t e = 0; e < a_.experts; ++e) bias.push_back(static_cast<float>(-a_.skew * static_cast<double>(e)));
    exec_.upload(bias_, bias.data());
  }
  std::vector<ConstView> views(const std::vector<View>& matrices) const { return {matrices.begin(), matrices.end()}; }
  Grad mode() const { return a_.accumulate ? Grad::accumulate : Grad::overwrite; }

  void route() {
    backend::matmul(exec_, logits_, x_, Transpose::no, router_, Transpose::yes);
    ops::add_bias(exec_, logits_, bias_);
    ops::moe_route(exec_, experts_, weights_, logits_, ops::RouteWeights::softmax_of_chosen);
    ops::moe_sort(exec_, order_, experts_);
  }
  void gather() { ops::moe_gather(exec_, sorted_, x_, order_); }
  void gate_up() { backend::grouped_matmul(exec_, hidden_, sorted_, views(gate_up_), Transpose::yes, order_.offsets); }
  void glu() { ops::expert_glu_forward(exec_, act_, hidden_, rows_); }
  void down() { backend::grouped_matmul(exec_, other_, act_, views(down_), Transpose::yes, order_.offsets); }
  void combine() {
    ops::moe_combine(exec_, out_, {.y = other_, .weights = weights_, .bias = down_bias_, .experts = experts_}, order_);
  }
  void spread() {
    ops::moe_combine_backward(exec_, other_, dweights_, dout_, {.bias = down_bias_, .experts = experts_}, order_);
  }
  void down_input() { backend::grouped_matmul(exec_, act_, other_, views(down_), Transpose::no, order_.offsets); }
  void glu_backward() {
    ops::expert_glu_backward(exec_, {.dgate_up = hidden_, .act = act_, .dweights = dweights_}, act_, hidden_, weights_,
                             rows_);
  }
  void down_gradient() { backend::grouped_matmul_over_rows(exec_, ddown_, mode(), other_, act_, order_.offsets); }
  void bias_gradients() {
    ops::moe_bias_backward(exec_, ddown_bias_, mode(), other_, weights_, order_);
    ops::moe_bias_backward(exec_, dgate_up_bias_, mode(), hidden_, {}, order_);
  }
  void gate_up_gradient() {
    backend::grouped_matmul_over_rows(exec_, dgate_up_, mode(), hidden_, sorted_, order_.offsets);
  }
  void gate_up_input() {
    backend::grouped_matmul(exec_, sorted_, hidden_, views(gate_up_), Transpose::no, order_.offsets);
  }
  void gather_back() { ops::moe_combine(exec_, out_, {.y = sorted_}, order_); }
  void route_back() {
    ops::moe_route_backward(exec_, dlogits_, {.dweights = dweights_}, experts_, logits_,
                            ops::RouteWeights::softmax_of_chosen);
    backend::matmul(exec_, drouter_, dlogits_, Transpose::yes, x_, Transpose::no);
    backend::matmul(exec_, out_, dlogits_, Transpose::no, router_, Transpose::no, {.beta = 1.0f});
  }

  backend::Exec& exec_;
  const MoeArguments& a_;
  DType dtype_;
  std::uint64_t seed_ = 1;
  std::size_t before_ = 0;
  View x_, out_, dout_, router_, logits_, dlogits_, drouter_, bias_, gate_up_bias_, down_bias_, dgate_up_bias_,
      ddown_bias_, experts_, weights_, dweights_, sorted_, other_, hidden_, act_;
  std::vector<View> gate_up_, down_, dgate_up_, ddown_;
  ops::ExpertOrder order_;
  ops::ExpertRows rows_;
};

Report run(const MoeArguments& a) {
  const auto [device, dtype] = train::resolve_machine(a.device, a.dtype);
  backend::Exec planner = backend::Exec::planner(device);
  Block plan(planner, a, dtype);
  plan.forward();
  plan.backward();
  backend::Exec exec = backend::Exec::runner(device, planner.arena().peak());
  Block block(exec, a, dtype);
  const double forward = median_ms(exec, a.iterations, [&] { block.forward(); });
  // With the forward pass in front of it, since it works in place.
  const double both = median_ms(exec, a.iterations, [&] {
    block.forward();
    block.backward();
  });
  Report stages;
  for (auto& [name, call] : block.stages()) stages[name] = median_ms(exec, a.iterations, call);

  const double flops = planner.cost().total().flops();
  return {{"ms", both},
          {"forward_ms", forward},
          {"backward_ms", both - forward},
          {"tflops", flops / both * 1e-9},
          {"floor_ms", flops / measured_matmul_rate(device, dtype) * 1e3},
          {"peak_extra_bytes", planner.arena().peak() - plan.before()},
          {"stages_ms", stages},
          {"rows_of_largest_expert", block.largest_expert()},
          {"tokens", a.tokens},
          {"hidden", a.hidden},
          {"intermediate", a.intermediate},
          {"experts", a.experts},
          {"chosen", a.chosen},
          {"device", name_of(device)},
          {"dtype", name_of(dtype)}};
}

}  // namespace

Benchmark moe_benchmark() {
  return {"moe", "a mixture-of-experts block: router, sorting, grouped products, forward and backward",
          [](CLI::App& command) -> std::function<Report()> {
            auto a = std::make_shared<MoeArguments>();
            add_common(command, *a);
            command.add_option("--tokens", a->tokens)->check(CLI::PositiveNumber);
            command.add_option("--hidden", a->hidden)->check(CLI::PositiveNumber);
            command.add_option("--intermediate", a->intermediate)->check(CLI::PositiveNumber);
            command.add_option("--experts", a->experts)->check(CLI::PositiveNumber);
            command.add_option("--chosen", a->chosen, "Experts per token")->check(CLI::PositiveNumber);
            command.add_option("--skew", a->skew,
                               "How much lower each expert's router bias is than that of the one before");
            command.add_flag("--accumulate", a->accumulate, "Add to the gradients, as a second micro-batch does");
            return [a] { return run(*a); };
          }};
}

}  // namespace inlay::bench
