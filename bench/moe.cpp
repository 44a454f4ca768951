#include "backend/grouped_fp8_matmul.h"
#include "backend/grouped_matmul.h"
#include "bench/bench.h"
#include "ops/elementwise.h"
#include "ops/expert_glu.h"
#include "ops/moe_route.h"
#include "train/session.h"

namespace inlay::bench {

namespace {

using backend::Fp8Forms;
using backend::Fp8Matrix;
using backend::Grad;
using backend::Transpose;
using ops::Fp8Role;
using ops::Fp8Use;

struct MoeArguments : Common {
  std::int64_t tokens = 16384, hidden = 2880, intermediate = 2880, experts = 32, chosen = 4;
  double skew = 0;
  bool accumulate = false;
  Products products;
};

// A mixture-of-experts block as GPT-OSS has it: router, clamped SwiGLU, biases everywhere. What a training step does
// with it, without norm and residual stream, on tensors that fill_random made. In fp8 every operand is written
// so by whoever makes it, as in a step; the weights are rounded once per step, and so by themselves.
class Block {
 public:
  Block(backend::Exec& exec, const MoeArguments& a, DType dtype, const std::optional<ops::Fp8Settings>& fp8)
      : exec_(exec), a_(a), dtype_(dtype), fp8_(fp8) {
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
    for (std::int64_t e = 0; fp8 && e < a.experts; ++e) {
      gate_up8_.push_back(keep("gate and up", Fp8Role::weight, Fp8Use::both, 2 * a.intermediate, a.hidden));
    }
    for (std::int64_t e = 0; fp8 && e < a.experts; ++e) {
      down8_.push_back(keep("down", Fp8Role::weight, Fp8Use::both, a.hidden, a.intermediate));
    }
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
    if (fp8) {
      sorted8_ = keep("sorted", Fp8Role::input, Fp8Use::both, pairs, a.hidden);
      act8_ = keep("activation", Fp8Role::input, Fp8Use::rows, pairs, a.intermediate);
      weighted8_ = keep("weighted activation", Fp8Role::input, Fp8Use::columns, pairs, a.intermediate);
      danswers8_ = keep("answers' gradient", Fp8Role::gradient, Fp8Use::both, pairs, a.hidden);
      dhidden8_ = keep("gate and up gradient", Fp8Role::gradient, Fp8Use::both, pairs, 2 * a.intermediate);
    }
    rows_ = {.kind = ops::Glu::clamped, .bias = gate_up_bias_, .experts = experts_, .order = order_};
    if (!exec.planning()) set_skew();
    list_stages();
  }

  void forward() {
    for (const Stage& stage : forward_) stage.run();
  }
  void backward() {
    for (const Stage& stage : backward_) stage.run();
  }

  struct Stage {
    std::string name;
    std::function<void()> run;
  };
  // Every stage by itself, in the order of a step.
  std::vector<Stage> stages() const {
    std::vector<Stage> all = forward_;
    all.insert(all.end(), backward_.begin(), backward_.end());
    return all;
  }

  void quantise_weights() {
    for (std::size_t e = 0; e < gate_up8_.size(); ++e) {
      ops::quantise_fp8(exec_, gate_up8_[e], gate_up_[e]);
      ops::quantise_fp8(exec_, down8_[e], down_[e]);
    }
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
  Fp8Forms keep(std::string_view name, Fp8Role role, Fp8Use use, std::int64_t rows, std::int64_t cols) {
    return ops::keep_fp8(exec_, MemoryClass::activations, name, *fp8_, role, use, rows, cols);
  }
  void list_stages() {
    const auto add = [this](std::vector<Stage>& to, std::string name, void (Block::*stage)()) {
      to.push_back({std::move(name), [this, stage] { (this->*stage)(); }});
    };
    add(forward_, "route", &Block::route);
    add(forward_, "gather", &Block::gather);
    add(forward_, "gate_up", &Block::gate_up);
    add(forward_, "glu", &Block::glu);
    add(forward_, "down", &Block::down);
    add(forward_, "combine", &Block::combine);
    add(backward_, "combine_backward", &Block::spread);
    add(backward_, "down_input", &Block::down_input);
    add(backward_, "glu_backward", &Block::glu_backward);
    add(backward_, "down_gradient", &Block::down_gradient);
    add(backward_, "bias_gradients", &Block::bias_gradients);
    add(backward_, "gate_up_gradient", &Block::gate_up_gradient);
    add(backward_, "gate_up_input", &Block::gate_up_input);
    add(backward_, "gather_backward", &Block::gather_back);
    add(backward_, "route_backward", &Block::route_back);
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
  void gather() {
    fp8_ ? ops::moe_gather_fp8(exec_, sorted8_, sorted_, x_, order_) : ops::moe_gather(exec_, sorted_, x_, order_);
  }
  // y = x Wᵀ or dx = dy W of all experts.
  void multiply(const View& to, const View& x, const Fp8Forms& x8, const std::vector<View>& matrices,
                const std::vector<Fp8Forms>& matrices8, Transpose transpose) {
    if (!fp8_) return backend::grouped_matmul(exec_, to, x, views(matrices), transpose, order_.offsets);
    std::vector<Fp8Matrix> b;
    for (const Fp8Forms& forms : matrices8) b.push_back(transpose == Transpose::yes ? forms.rows : forms.columns);
    backend::grouped_fp8_matmul(exec_, to, x8.rows, b, order_.offsets, {}, fp8_->sums);
  }
  void sum_over_rows(const std::vector<View>& to, const View& dy, const Fp8Forms& dy8, const View& x,
                     const Fp8Forms& x8) {
    if (!fp8_) return backend::grouped_matmul_over_rows(exec_, to, mode(), dy, x, order_.offsets);
    backend::grouped_fp8_matmul_over_rows(exec_, to, mode(), dy8.columns, x8.columns, order_.offsets);
  }
  void gate_up() { multiply(hidden_, sorted_, sorted8_, gate_up_, gate_up8_, Transpose::yes); }
  void glu() {
    fp8_ ? ops::expert_glu_forward_fp8(exec_, act8_, hidden_, rows_)
         : ops::expert_glu_forward(exec_, act_, hidden_, rows_);
  }
  void down() { multiply(other_, act_, act8_, down_, down8_, Transpose::yes); }
  void combine() {
    ops::moe_combine(exec_, out_, {.y = other_, .weights = weights_, .bias = down_bias_, .experts = experts_}, order_);
  }
  void spread() {
    const ops::Combine bias{.bias = down_bias_, .experts = experts_};
    fp8_ ? ops::moe_combine_backward_fp8(exec_, danswers8_, other_, dweights_, dout_, bias, order_)
         : ops::moe_combine_backward(exec_, other_, dweights_, dout_, bias, order_);
  }
  void down_input() { multiply(act_, other_, danswers8_, down_, down8_, Transpose::no); }
  void glu_backward() {
    if (!fp8_) {
      return ops::expert_glu_backward(exec_, {.dgate_up = hidden_, .act = act_, .dweights = dweights_}, act_, hidden_,
                                      weights_, rows_);
    }
    ops::expert_glu_backward_fp8(
        exec_, {.dgate_up = dhidden8_, .act = weighted8_, .dbias = dgate_up_bias_, .dbias_mode = mode()},
        {.dweights = dweights_}, act_, hidden_, weights_, rows_);
  }
  void down_gradient() { sum_over_rows(ddown_, other_, danswers8_, act_, weighted8_); }
  void bias_gradients() {
    if (fp8_) return ops::moe_bias_backward(exec_, ddown_bias_, mode(), dout_, weights_, order_, ops::RowsOf::tokens);
    ops::moe_bias_backward(exec_, ddown_bias_, mode(), other_, weights_, order_);
    ops::moe_bias_backward(exec_, dgate_up_bias_, mode(), hidden_, {}, order_);
  }
  void gate_up_gradient() { sum_over_rows(dgate_up_, hidden_, dhidden8_, sorted_, sorted8_); }
  void gate_up_input() { multiply(sorted_, hidden_, dhidden8_, gate_up_, gate_up8_, Transpose::no); }
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
  std::optional<ops::Fp8Settings> fp8_;
  std::uint64_t seed_ = 1;
  std::size_t before_ = 0;
  View x_, out_, dout_, router_, logits_, dlogits_, drouter_, bias_, gate_up_bias_, down_bias_, dgate_up_bias_,
      ddown_bias_, experts_, weights_, dweights_, sorted_, other_, hidden_, act_;
  std::vector<View> gate_up_, down_, dgate_up_, ddown_;
  std::vector<Fp8Forms> gate_up8_, down8_;
  Fp8Forms sorted8_, act8_, weighted8_, danswers8_, dhidden8_;
  std::vector<Stage> forward_, backward_;
  ops::ExpertOrder order_;
  ops::ExpertRows rows_;
};

Report run(const MoeArguments& a) {
  const train::Machine machine = train::resolve_machine(a.device, a.dtype);
  const auto [device, dtype] = machine;
  std::optional<ops::Fp8Settings> fp8;
  if (const auto options = fp8_of(a.products, machine)) fp8 = options->settings;
  if (a.products.head) user_error("--fp8-head: a mixture of experts has no head; leave it out");
  if (fp8 && !backend::grouped_fp8_possible(device)) {
    user_error("--matmul-dtype fp8: experts multiply in fp8 on Hopper GPUs and on the CPU alone");
  }
  backend::Exec planner = backend::Exec::planner(device);
  Block plan(planner, a, dtype, fp8);
  plan.forward();
  plan.backward();
  const double flops = planner.cost().total().flops();
  backend::Exec exec = backend::Exec::runner(device, planner.arena().peak());
  Block block(exec, a, dtype, fp8);
  const double weights = fp8 ? median_ms(exec, a.iterations, [&] { block.quantise_weights(); }) : 0;
  const double forward = median_ms(exec, a.iterations, [&] { block.forward(); });
  // With the forward pass in front of it, since it works in place.
  const double both = median_ms(exec, a.iterations, [&] {
    block.forward();
    block.backward();
  });
  Report stages;
  for (const Block::Stage& stage : block.stages()) stages[stage.name] = median_ms(exec, a.iterations, stage.run);

  Report report;
  if (fp8) {
    // Rounding the weights is not part of ms: a step does it once, however many micro-batches it has.
    report = {{"quantise_weights_once_per_step_ms", weights}, {"recipe", ops::name_of(fp8->recipe)}};
  }
  report.update({{"ms", both},
                 {"forward_ms", forward},
                 {"backward_ms", both - forward},
                 {"tflops", flops / both * 1e-9},
                 {"floor_ms", flops / measured_matmul_rate(device, fp8 ? DType::e4m3 : dtype) * 1e3},
                 {"peak_extra_bytes", planner.arena().peak() - plan.before()},
                 {"stages_ms", stages},
                 {"rows_of_largest_expert", block.largest_expert()},
                 {"tokens", a.tokens},
                 {"hidden", a.hidden},
                 {"intermediate", a.intermediate},
                 {"experts", a.experts},
                 {"chosen", a.chosen},
                 {"device", name_of(device)},
                 {"dtype", name_of(dtype)}});
  return report;
}

}  // namespace

Benchmark moe_benchmark() {
  return {"moe", "a mixture-of-experts block: router, sorting, grouped products, forward and backward",
          [](CLI::App& command) -> std::function<Report()> {
            auto a = std::make_shared<MoeArguments>();
            add_common(command, *a);
            add_products(command, a->products);
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
