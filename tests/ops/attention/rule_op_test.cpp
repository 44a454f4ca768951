#include <complex>
#include <functional>
#include <random>

#include "backend/cpu/threads.h"
#include "ops/attention/cases.h"
#include "ops/attention/rules/rule.h"
#include "support/files.h"

// Attention by rules: the devices against the reference, for which every rule is written a second time by hand.
namespace inlay::ops {
namespace {

using namespace attention_cases;
using reference::AttentionPair;
using Complex = std::complex<double>;

constexpr int prefix_of_document[] = {5, 70, 0, 129, 3};
std::int64_t prefix_length(std::int64_t document) { return prefix_of_document[document % 5]; }
double bias_of(std::int64_t head) { return 0.5 * static_cast<double>(head) - 0.75; }

struct Rule {
  const char* mask;
  const char* score;
  std::function<bool(const AttentionPair&)> visible;
  std::function<Complex(const AttentionPair&, Complex)> scored = [](const AttentionPair&, Complex s) { return s; };
};

// What the reference wants of a rule.
struct ReferenceRule {
  const Rule& rule;
  bool sees(const AttentionPair& at) const { return rule.visible(at); }
  double score(const AttentionPair& at, double s) const { return rule.scored(at, s).real(); }
  Complex score(const AttentionPair& at, Complex s) const { return rule.scored(at, s); }
};

bool causal(const AttentionPair& at) { return at.k <= at.q; }

Complex capped(Complex s, double c) { return c * std::tanh(s / c); }

double slope_of_head(std::int64_t h, std::int64_t heads) {
  return std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(heads));  // a power of two
}

const std::vector<Rule>& masks() {
  static const std::vector<Rule> rules = {
      {"true", "", [](const AttentionPair&) { return true; }},
      {"causal or prefix", "", [](const AttentionPair& at) { return causal(at) || at.k < prefix_length(at.document); }},
      {"document and (causal or prefix) and window(65)", "",
       [](const AttentionPair& at) { return (causal(at) || at.k < prefix_length(at.document)) && at.q - at.k < 65; }},
      {"k <= q and (q - k < 20 or k % 64 == 0)", "",
       [](const AttentionPair& at) { return causal(at) && (at.q - at.k < 20 || at.k % 64 == 0); }},
      {"abs(q - k) < 70", "", [](const AttentionPair& at) { return std::abs(at.q - at.k) < 70; }},
      {"not causal", "", [](const AttentionPair& at) { return !causal(at); }},  // the last query sees nothing
      {"k // 48 < q // 48", "", [](const AttentionPair& at) { return at.k / 48 < at.q / 48; }},
      {"where(h % 2 == 0, 30, 90) > q - k >= 0", "",
       [](const AttentionPair& at) { return causal(at) && at.q - at.k < (at.head % 2 == 0 ? 30 : 90); }},
      {"false", "", [](const AttentionPair&) { return false; }},
      {"causal and ((q - k) % 7 == 0 or q // 10 % 3 == k // 16)", "",
       [](const AttentionPair& at) { return causal(at) && ((at.q - at.k) % 7 == 0 || at.q / 10 % 3 == at.k / 16); }},
  };
  return rules;
}

const std::vector<Rule>& scores() {
  static const std::vector<Rule> rules = {
      {"causal", "softcap(2)", causal, [](const AttentionPair&, Complex s) { return capped(s, 2); }},
      {"causal and window(33)", "alibi", [](const AttentionPair& at) { return causal(at) && at.q - at.k < 33; },
       [](const AttentionPair& at, Complex s) {
         return s - slope_of_head(at.head, 4) * static_cast<double>(std::abs(at.q - at.k));
       }},
      {"true", "s - 0.05*abs(q-k)", [](const AttentionPair&) { return true; },
       [](const AttentionPair& at, Complex s) { return s - 0.05 * static_cast<double>(std::abs(at.q - at.k)); }},
      {"causal or prefix", "softcap(3) then where(k < prefix_length, s * s * 0.5, s) then head_bias",
       [](const AttentionPair& at) { return causal(at) || at.k < prefix_length(at.document); },
       [](const AttentionPair& at, Complex s) {
         s = capped(s, 3);
         if (at.k < prefix_length(at.document)) s = s * s * 0.5;
         return s + bias_of(at.head);
       }},
  };
  return rules;
}

std::vector<std::int32_t> prefix_lengths(const Case& c) {
  std::vector<std::int32_t> prefixes;
  for (std::size_t d = 0; d < c.documents.size(); ++d) {
    prefixes.push_back(static_cast<std::int32_t>(prefix_length(static_cast<std::int64_t>(d))));
  }
  return prefixes;
}

// The tensors that rules may want, beside those of a case.
void add_rule(Layout& layout, TestBench& bench, const AttentionRule& rule, const std::vector<std::int32_t>& prefixes) {
  std::vector<double> biases;
  for (std::int64_t h = 0; h < layout.c.heads; ++h) biases.push_back(bias_of(h));
  layout.spec.rule = &rule;
  layout.spec.prefix_lengths = bench.indices(prefixes);
  layout.spec.head_bias = bench.tensor(DType::f32, {layout.c.heads}, biases);
}

void expect_right(Device device, DType dtype, const Case& c, const Rule& named, const AttentionRule& rule,
                  const std::vector<std::int32_t>& prefixes) {
  SCOPED_TRACE(fmt::format("{}, mask {}, score {}", c.name(), named.mask, named.score));
  const Inputs in(c, dtype);
  TestBench bench(device);
  Layout layout(bench, dtype, c, in);
  add_rule(layout, bench, rule, prefixes);
  const Results actual = layout.run(bench);
  const ReferenceRule meaning{named};
  const Results expected = reference_results(c, in, exact, meaning);
  const Results simulated = reference_results(c, in, rounding(dtype), meaning);
  expect_close(dtype, "out", actual.out, expected.out, simulated.out);
  expect_close(dtype, "dq", actual.dq, expected.dq, simulated.dq);
  expect_close(dtype, "dk", actual.dk, expected.dk, simulated.dk);
  expect_close(dtype, "dv", actual.dv, expected.dv, simulated.dv);
  // With sinks out is rounded twice, before and after their share is taken off; the simulation does it once.
  expect_close(dtype, "dsinks", actual.dsinks, expected.dsinks, simulated.dsinks, 4);
  for (std::size_t i = 0; i < expected.lse.size(); ++i) {
    if (std::isinf(expected.lse[i])) {
      ASSERT_EQ(actual.lse[i], expected.lse[i]) << "lse of row " << i;
    } else {
      ASSERT_NEAR(actual.lse[i], expected.lse[i], dtype == DType::f32 ? 4e-6 : 4e-5) << "lse of row " << i;
    }
  }
  const std::int64_t width = layout.dqkv.dim(1);
  for (const double x : bench.read(layout.dqkv.slice_cols(width - Layout::spare, width))) {
    ASSERT_TRUE(std::isnan(x)) << "written outside of the gradients";
  }
}

void expect_right(Device device, DType dtype, const Case& c, const Rule& named) {
  expect_right(device, dtype, c, named, *AttentionRule::parse(named.mask, named.score), prefix_lengths(c));
}

class OpsRuleAttention : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  template <class... More>
  void expect_right(const Case& c, const Rule& rule, const More&... more) const {
    ops::expect_right(device(), dtype(), c, rule, more...);
  }
};

TEST_P(OpsRuleAttention, Masks) {
  for (const Rule& rule : masks()) {
    expect_right({{300, 1, 66}, 4, 2, 64}, rule);
    expect_right({{130}, 2, 2, 48}, rule);
  }
}

TEST_P(OpsRuleAttention, Scores) {
  for (const Rule& rule : scores()) {
    expect_right({{200, 1, 66}, 4, 2, 64}, rule);
    expect_right({{70, 3}, 4, 1, 16}, rule);
  }
}

TEST_P(OpsRuleAttention, HeadSizes) {
  for (const std::int64_t head_size : {64, 96, 128, 80, 256}) {
    expect_right({{140, 20}, 4, 2, head_size}, masks()[3]);
    expect_right({{140, 20}, 4, 2, head_size}, scores()[0]);
  }
}

TEST_P(OpsRuleAttention, HeadCounts) {
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {6, 6}, {8, 1}, {12, 2}}) {
    expect_right({{67, 130}, heads, kv_heads, 64}, masks()[1]);
  }
}

// At the edges of tiles of 32, of 64 and of 128. The window comes as a number, so that the rule is compiled once.
TEST_P(OpsRuleAttention, WindowsAtTheirEdges) {
  const auto rule = AttentionRule::parse("causal and window(prefix_length)");
  EXPECT_EQ(rule->causal_window(), std::nullopt);
  for (const int window : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 299, 300, 301}) {
    const std::vector<std::int32_t> windows = {window, window};
    const Rule named = {"causal and window(prefix_length)", "",
                        [window](const AttentionPair& at) { return causal(at) && at.q - at.k < window; }};
    for (const std::int64_t head_size : {64, 256}) expect_right({{300, 66}, 2, 1, head_size}, named, *rule, windows);
  }
}

TEST_P(OpsRuleAttention, Documents) {
  for (const Rule* rule : {&masks()[1], &masks()[5], &scores()[3]}) {
    expect_right({{1}, 4, 2, 64}, *rule);
    expect_right({{1, 1, 1, 1, 1}, 4, 2, 64}, *rule);
    expect_right({{5, 0, 9}, 2, 2, 64}, *rule);  // an empty document
    expect_right({{63, 64, 65, 127, 128, 129}, 2, 1, 64}, *rule);
    expect_right({{2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41}, 4, 2, 96}, *rule);
    expect_right({{1, 31, 32, 33, 0, 65, 127, 129}, 2, 1, 256}, *rule);
  }
}

TEST_P(OpsRuleAttention, Sinks) {
  for (const Rule* rule : {&masks()[2], &masks()[5], &masks()[8], &scores()[0], &scores()[3]}) {
    expect_right({{200, 1, 33}, 4, 2, 64, 0, true}, *rule);
  }
}

TEST_P(OpsRuleAttention, LongDocument) {
  expect_right({{700}, 2, 1, 64}, masks()[0]);
  expect_right({{700, 520}, 2, 1, 128}, masks()[3]);
  expect_right({{700, 520}, 2, 1, 256}, masks()[3]);
}

// Masks of squares here and there: empty, full and partial tiles in any order.
TEST_P(OpsRuleAttention, RandomBlockSparseMasks) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    std::mt19937 random(seed);
    struct Box {
      std::int64_t q, k, rows, columns;
    };
    std::vector<Box> boxes;
    std::string mask = "false";
    for (int i = 0; i < 12; ++i) {
      const auto pick = [&](unsigned count) { return static_cast<std::int64_t>(random() % count); };
      const Box box = {pick(400), pick(400), 1 + pick(200), 1 + pick(200)};
      boxes.push_back(box);
      mask += fmt::format(" or ({} <= q < {} and {} <= k < {})", box.q, box.q + box.rows, box.k, box.k + box.columns);
    }
    const Rule rule = {mask.c_str(), "", [&](const AttentionPair& at) {
                         return std::ranges::any_of(boxes, [&](const Box& box) {
                           return at.q >= box.q && at.q < box.q + box.rows && at.k >= box.k &&
                                  at.k < box.k + box.columns;
                         });
                       }};
    expect_right({{450, 77}, 2, 1, 64}, rule);
  }
}

// Rules with nothing to them take the usual route, and their bits.
TEST_P(OpsRuleAttention, CausalRulesAreCausalAttention) {
  const Case c = {{150, 90}, 4, 2, 64, 40};
  const Inputs in(c, dtype());
  TestBench bench(device());
  Layout layout(bench, dtype(), c, in);
  const Results plain = layout.run(bench);
  const auto rule = AttentionRule::parse("window(40) and causal and document");
  layout.spec.rule = rule.get();
  layout.spec.window = 0;
  EXPECT_EQ(layout.run(bench).out, plain.out);
}

// Tiles begin with their document, so the bits are the same.
TEST_P(OpsRuleAttention, PackedDocumentsEqualSeparateOnes) {
  const Case packed = {{1, 37, 64, 300, 5}, 4, 2, 64};
  const Inputs in(packed, dtype());
  const auto rule = AttentionRule::parse("(causal or prefix) and q - k < 100", "softcap(2) then head_bias");
  TestBench bench(device());
  Layout layout(bench, dtype(), packed, in);
  add_rule(layout, bench, *rule, prefix_lengths(packed));
  const Results together = layout.run(bench);
  Results apart;
  for (std::size_t d = 0; d < packed.documents.size(); ++d) {
    const Case one = {{packed.documents[d]}, 4, 2, 64};
    const auto part = [&](const std::vector<double>& x) {
      const auto width = static_cast<std::ptrdiff_t>(x.size()) / packed.tokens();
      return std::vector<double>(x.begin() + layout.offsets[d] * width, x.begin() + layout.offsets[d + 1] * width);
    };
    Inputs own(one, dtype());
    own.q = part(in.q);
    own.k = part(in.k);
    own.v = part(in.v);
    own.dout = part(in.dout);
    Layout alone(bench, dtype(), one, own);
    add_rule(alone, bench, *rule, {prefix_lengths(packed)[d]});
    const Results results = alone.run(bench);
    for (const auto& [all, more] : {std::pair{&apart.out, &results.out},
                                    {&apart.lse, &results.lse},
                                    {&apart.dq, &results.dq},
                                    {&apart.dk, &results.dk},
                                    {&apart.dv, &results.dv}}) {
      all->insert(all->end(), more->begin(), more->end());
    }
  }
  EXPECT_EQ(together.out, apart.out);
  EXPECT_EQ(together.lse, apart.lse);
  EXPECT_EQ(together.dq, apart.dq);
  EXPECT_EQ(together.dk, apart.dk);
  EXPECT_EQ(together.dv, apart.dv);
}

TEST_P(OpsRuleAttention, SameBitsOnAnyNumberOfThreads) {
  const int threads_before = backend::cpu::threads();
  const Case c = {{600, 70, 3}, 4, 2, 64};
  const Inputs in(c, dtype());
  const auto rule = AttentionRule::parse("(causal or k < 100) and (q - k < 200 or k % 7 == 0)", "softcap(2)");
  Results first;
  for (const int threads : {1, 2, 16}) {
    backend::cpu::set_threads(threads);
    TestBench bench(device());
    Layout layout(bench, dtype(), c, in);
    layout.spec.rule = rule.get();
    const Results results = layout.run(bench);
    if (threads == 1) first = results;
    EXPECT_EQ(results.out, first.out) << threads;
    EXPECT_EQ(results.dq, first.dq) << threads;
    EXPECT_EQ(results.dk, first.dk) << threads;
    EXPECT_EQ(results.dv, first.dv) << threads;
  }
  backend::cpu::set_threads(threads_before);
}

// The plan takes what the run takes.
TEST_P(OpsRuleAttention, PlansItsScratch) {
  const Case c = {{40, 90}, 4, 2, 64};
  TestBench bench(device());
  Layout layout(bench, dtype(), c, Inputs(c, dtype()));
  const auto rule = AttentionRule::parse("causal or prefix");
  add_rule(layout, bench, *rule, prefix_lengths(c));
  const std::size_t before = bench.exec.arena().used();
  layout.run(bench);
  backend::Exec planner = backend::Exec::planner(device());
  attention_forward(planner, layout.tensors, layout.spec);
  attention_backward(planner, layout.grads, layout.dout, layout.tensors, layout.spec);
  EXPECT_EQ(planner.arena().peak(), bench.exec.arena().peak() - before);
}

TEST_P(OpsRuleAttention, WantsWhatItsRuleWants) {
  const Case c = {{40}, 4, 2, 64};
  TestBench bench(device());
  Layout layout(bench, dtype(), c, Inputs(c, dtype()));
  const auto prefix = AttentionRule::parse("causal or prefix"), bias = AttentionRule::parse("", "head_bias");
  for (const auto& rule : {prefix, bias}) {
    layout.spec.rule = rule.get();
    EXPECT_THROW(attention_forward(bench.exec, layout.tensors, layout.spec), InternalError);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, OpsRuleAttention,
                         ::testing::Combine(::testing::ValuesIn(testing::devices()),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) {
                           return testing::case_name(std::get<0>(info.param), std::get<1>(info.param));
                         });

// On a GPU, the other two ways to the same numbers: products of a warp, and the interpreter.
class OpsRuleAttentionRoutes : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto devices = testing::devices();
    if (std::ranges::find(devices, Device::cuda) == devices.end()) GTEST_SKIP() << "no GPU";
  }
  static void expect_all_right() {
    for (const std::int64_t head_size : {64, 96, 128, 256}) {
      for (const Rule* rule : {&masks()[3], &scores()[3]}) {
        expect_right(Device::cuda, DType::bf16, {{200, 1, 66}, 4, 2, head_size}, *rule);
      }
    }
  }
};

TEST_F(OpsRuleAttentionRoutes, ProductsOfAWarp) {
  const testing::Setting setting("INLAY_ATTENTION_PRODUCTS", "warp");
  expect_all_right();
}

// Causal attention where cuDNN is passed by.
TEST_F(OpsRuleAttentionRoutes, CausalAttention) {
  const testing::Setting setting("INLAY_ATTENTION", "compiled");
  for (const auto& [head_size, window] : {std::pair{64, 0}, {96, 65}, {128, 65}, {256, 0}, {256, 65}}) {
    const Case c = {{200, 1, 66, 128}, 4, 2, head_size, window};
    SCOPED_TRACE(c.name());
    const Inputs in(c, DType::bf16);
    TestBench bench(Device::cuda);
    Layout layout(bench, DType::bf16, c, in);
    const Results actual = layout.run(bench), expected = reference_results(c, in, exact);
    const Results simulated = reference_results(c, in, rounding(DType::bf16));
    expect_close(DType::bf16, "out", actual.out, expected.out, simulated.out);
    expect_close(DType::bf16, "dq", actual.dq, expected.dq, simulated.dq);
    expect_close(DType::bf16, "dk", actual.dk, expected.dk, simulated.dk);
    expect_close(DType::bf16, "dv", actual.dv, expected.dv, simulated.dv);
  }
}

TEST_F(OpsRuleAttentionRoutes, Interpreted) {
  const testing::Setting setting("INLAY_ATTENTION", "plain");
  expect_all_right();
}

// The reference's gradients are the derivatives of its forward pass, by complex step.
TEST(OpsRuleAttentionReference, GradientsAreDerivatives) {
  for (const Rule* rule : {&masks()[1], &masks()[5], &masks()[7], &scores()[0], &scores()[1], &scores()[3]}) {
    const Case c = {{1, 5, 3}, 4, 2, 3, 0, true};
    const Inputs in(c, DType::f64);
    const auto offsets = c.offsets();
    const reference::AttentionShape shape = {c.heads, c.kv_heads, c.head_size, scale_of(c), 0, offsets};
    const ReferenceRule meaning{*rule};
    const Results expected = reference_results(c, in, exact, meaning);
    std::vector<Complex> inputs[4] = {{in.q.begin(), in.q.end()},
                                      {in.k.begin(), in.k.end()},
                                      {in.v.begin(), in.v.end()},
                                      {in.sinks.begin(), in.sinks.end()}};
    const std::vector<double>* gradients[4] = {&expected.dq, &expected.dk, &expected.dv, &expected.dsinks};
    constexpr double step = 1e-100;
    for (int which = 0; which < 4; ++which) {
      std::vector<double> derivative;
      for (Complex& x : inputs[which]) {
        x += Complex(0, step);
        std::vector<Complex> out, lse;
        reference::attention_forward(out, lse, inputs[0], inputs[1], inputs[2], shape, exact, inputs[3], meaning);
        double sum = 0;
        for (std::size_t i = 0; i < out.size(); ++i) sum += out[i].imag() * in.dout[i];
        derivative.push_back(sum / step);
        x -= Complex(0, step);
      }
      EXPECT_LE(testing::relative_error(*gradients[which], derivative), 1e-12) << rule->mask << ", input " << which;
    }
  }
}

}  // namespace
}  // namespace inlay::ops
