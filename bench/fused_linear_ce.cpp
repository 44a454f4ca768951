#include "ops/fused_linear_ce.h"

#include "bench/bench.h"
#include "core/philox.h"
#include "train/session.h"
#include "weights/dense.h"

namespace inlay::bench {

namespace {

struct FusedLinearCeArguments : Common {
  std::int64_t tokens = 16384, hidden = 4096, vocab = 128256, chunk = 0;
  double ignored = 0;
  std::string divergence = "none";
};

// A head that calls `at_end` with its product number `count`: the op's memory is still taken then, and all products
// can be computed again in a row without what lies between them.
class RecordingHead final : public ops::Linear {
 public:
  using Products = std::vector<std::function<void()>>;

  RecordingHead(ops::Linear& head, std::size_t count, std::function<void(const Products&)> at_end)
      : head_(head), count_(count), at_end_(std::move(at_end)) {}

  std::int64_t in_features() const override { return head_.in_features(); }
  std::int64_t out_features() const override { return head_.out_features(); }
  bool trainable() const override { return head_.trainable(); }
  void forward(backend::Exec& exec, View y, backend::Grad mode, ConstView x, const ops::Call& call) override {
    record([=, this, &exec] { head_.forward(exec, y, mode, x, call); });
  }
  void backward_input(backend::Exec& exec, View dx, backend::Grad mode, ConstView dy, const ops::Call& call) override {
    record([=, this, &exec] { head_.backward_input(exec, dx, mode, dy, call); });
  }
  void accumulate(backend::Exec& exec, ConstView dy, ConstView x, const ops::Call& call) override {
    record([=, this, &exec] { head_.accumulate(exec, dy, x, call); });
  }

  std::size_t count() const { return products_.size(); }

 private:
  void record(std::function<void()> product) {
    product();
    products_.push_back(std::move(product));
    if (products_.size() == count_) at_end_(products_);
  }

  ops::Linear& head_;
  std::size_t count_;
  std::function<void(const Products&)> at_end_;
  Products products_;
};

Report run(const FusedLinearCeArguments& a) {
  const auto [device, dtype] = train::resolve_machine(a.device, a.dtype);
  const Philox philox{7};
  std::vector<std::int32_t> targets, rows;
  for (std::int64_t t = 0; t < a.tokens; ++t) {
    const auto word = philox.words(static_cast<std::uint64_t>(t));
    const bool counts = Philox::uniform(word[1]) >= a.ignored;
    targets.push_back(counts ? static_cast<std::int32_t>(word[0] % static_cast<std::uint64_t>(a.vocab)) : -100);
    if (counts) rows.push_back(static_cast<std::int32_t>(t));
  }
  double ms = 0, products_ms = 0;
  const auto work = [&](backend::Exec& exec) {
    Arena& arena = exec.arena();
    weights::Parameter parameter;
    parameter.name = "head";
    parameter.shape = {a.vocab, a.hidden};
    weights::allocate_value(exec, parameter, dtype);
    parameter.grad = arena.keep(MemoryClass::gradients, "head.grad", DType::f32, parameter.shape);
    weights::DenseWeight head(parameter);
    View hidden = arena.keep(MemoryClass::activations, "hidden", dtype, {a.tokens, a.hidden});
    View dhidden = arena.keep(MemoryClass::activations, "dhidden", dtype, {a.tokens, a.hidden});
    View device_targets = arena.keep(MemoryClass::batch, "targets", DType::i32, {a.tokens});
    View device_rows = arena.keep(MemoryClass::batch, "rows", DType::i32, {static_cast<std::int64_t>(rows.size())});
    View loss = arena.keep(MemoryClass::batch, "loss", DType::f32, {1});
    // Another model's head and hidden states of the same width.
    const std::map<std::string, ops::DivergenceKind> kinds = {{"forward", ops::DivergenceKind::forward},
                                                              {"reverse", ops::DivergenceKind::reverse},
                                                              {"jsd", ops::DivergenceKind::jensen_shannon}};
    const auto kind = kinds.find(a.divergence);
    weights::Parameter theirs;
    std::unique_ptr<weights::DenseWeight> their_head;
    ops::OtherModel other;
    if (kind != kinds.end()) {
      theirs.name = "other head";
      theirs.shape = parameter.shape;
      theirs.trainable = false;
      weights::allocate_value(exec, theirs, dtype);
      their_head = std::make_unique<weights::DenseWeight>(theirs);
      const View states = arena.keep(MemoryClass::activations, "other hidden", dtype, {a.tokens, a.hidden});
      if (!exec.planning()) {
        fill_random(exec, theirs.value, 0.02f, 3);
        fill_random(exec, states, 1.0f, 4);
      }
      other = {.head = their_head.get(), .hidden = states};
    }
    if (!exec.planning()) {
      fill_random(exec, parameter.value, 0.02f, 1);
      fill_random(exec, hidden, 1.0f, 2);
    }
    exec.upload(device_targets, targets.data());
    exec.upload(device_rows, rows.data());
    exec.fill_zero(loss);
    const std::size_t before = arena.used();
    const auto call = [&](ops::Linear& with) {
      parameter.forget_grad();
      ops::LossOptions options{.normalizer = static_cast<double>(rows.size()), .chunk_tokens = a.chunk};
      if (kind != kinds.end()) options.divergence = {.kind = kind->second, .beta = 0.5f, .ce_weight = 0};
      ops::fused_linear_ce(exec, with,
                           {.hidden = hidden, .targets = device_targets, .rows = device_rows, .other = other},
                           {.loss = loss, .dhidden = dhidden, .head_gradient = true}, options);
    };
    if (exec.planning()) {
      call(head);
    } else {
      ms = median_ms(exec, a.iterations, [&] { call(head); });
      RecordingHead counting(head, 0, {});
      call(counting);
      RecordingHead recording(head, counting.count(), [&](const RecordingHead::Products& products) {
        products_ms = median_ms(exec, a.iterations, [&] {
          parameter.forget_grad();
          for (const auto& product : products) product();
        });
      });
      call(recording);
    }
    return before;
  };
  backend::Exec planner = backend::Exec::planner(device);
  const std::size_t before = work(planner);
  const std::size_t extra = planner.arena().peak() - before;
  backend::Exec exec = backend::Exec::runner(device, planner.arena().peak());
  work(exec);

  const double floor = planner.cost().total().flops() / measured_matmul_rate(device, dtype) * 1e3;
  return {{"ms", ms},
          {"products_ms", products_ms},
          {"peak_extra_bytes", extra},
          {"floor_ms", floor},
          {"share_of_floor", floor / ms},
          {"tokens", a.tokens},
          {"valid_tokens", rows.size()},
          {"hidden", a.hidden},
          {"vocab", a.vocab},
          {"ignored", a.ignored},
          {"divergence", a.divergence},
          {"device", name_of(device)},
          {"dtype", name_of(dtype)}};
}

}  // namespace

Benchmark fused_linear_ce_benchmark() {
  return {
      "fused-linear-ce", "head and loss, forward and backward", [](CLI::App& command) -> std::function<Report()> {
        auto a = std::make_shared<FusedLinearCeArguments>();
        add_common(command, *a);
        command.add_option("--tokens", a->tokens)->check(CLI::PositiveNumber);
        command.add_option("--hidden", a->hidden)->check(CLI::PositiveNumber);
        command.add_option("--vocab", a->vocab)->check(CLI::PositiveNumber);
        command.add_option("--ignored", a->ignored, "Share of labels that do not count")->check(CLI::Range(0.0, 1.0));
        command.add_option("--divergence", a->divergence, "Learn another head's prediction: forward, reverse or jsd")
            ->check(CLI::IsMember({"none", "forward", "reverse", "jsd"}));
        command.add_option("--chunk", a->chunk, "Rows of logits at once; 0: the default")
            ->check(CLI::NonNegativeNumber);
        return [a] { return run(*a); };
      }};
}

}  // namespace inlay::bench
