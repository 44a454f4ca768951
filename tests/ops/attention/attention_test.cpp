#include <complex>

#include "backend/cpu/threads.h"
#include "ops/attention/cases.h"

namespace inlay::ops {
namespace {

using namespace attention_cases;

class OpsAttention : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }

  void expect_close(const char* what, const std::vector<double>& actual, const std::vector<double>& expected,
                    const std::vector<double>& simulated) const {
    attention_cases::expect_close(dtype(), what, actual, expected, simulated);
  }

  void expect_right(const Case& c) const {
    expect_right(c, true);
    if (device() == Device::cuda) expect_right(c, false);  // another kernel there
  }

  void expect_right(const Case& c, bool deterministic) const {
    SCOPED_TRACE(c.name() + (deterministic ? ", deterministic" : ""));
    const Inputs in(c, dtype());
    TestBench bench(device());
    Layout layout(bench, dtype(), c, in);
    layout.spec.deterministic = deterministic;
    const Results actual = layout.run(bench);
    const Results expected = reference_results(c, in, exact);
    const Results simulated = reference_results(c, in, rounding(dtype()));
    expect_close("out", actual.out, expected.out, simulated.out);
    expect_close("dq", actual.dq, expected.dq, simulated.dq);
    expect_close("dk", actual.dk, expected.dk, simulated.dk);
    expect_close("dv", actual.dv, expected.dv, simulated.dv);
    expect_close("dsinks", actual.dsinks, expected.dsinks, simulated.dsinks);
    // lse is fp32 whatever the activations are; only the scores' own fp32 sums and exponentials stand behind it.
    for (std::size_t i = 0; i < expected.lse.size(); ++i) {
      ASSERT_NEAR(actual.lse[i], expected.lse[i], dtype() == DType::f32 ? 4e-6 : 4e-5) << "lse of row " << i;
    }
    const std::int64_t width = layout.dqkv.dim(1);
    for (const double x : bench.read(layout.dqkv.slice_cols(width - Layout::spare, width))) {
      ASSERT_TRUE(std::isnan(x)) << "written outside of the gradients";
    }
  }
};

TEST_P(OpsAttention, HeadSizes) {
  for (const std::int64_t head_size : {8, 10, 16, 48, 64, 80, 128, 256}) expect_right({{70, 1, 33}, 4, 2, head_size});
}

TEST_P(OpsAttention, HeadCounts) {
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {4, 2}, {6, 6}, {8, 1}, {12, 1}}) {
    expect_right({{67, 130}, heads, kv_heads, 48});
  }
}

TEST_P(OpsAttention, Documents) {
  expect_right({{1}, 4, 2, 16});
  expect_right({{1, 1, 1, 1, 1}, 4, 2, 16});
  expect_right({{2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47}, 4, 2, 48});
  expect_right({{63, 64, 65, 127, 128, 129}, 2, 1, 16});
  expect_right({{300}, 4, 2, 64});
  expect_right({{5, 0, 9}, 2, 2, 16});  // an empty document
}

TEST_P(OpsAttention, Windows) {
  for (const std::int64_t window : {1, 2, 4, 63, 64, 65, 127, 128, 299, 300, 301, 1000}) {
    expect_right({{300, 3, 66}, 2, 1, 16, window});
  }
}

// With windows whose edges fall on, before and behind those of a document and of a tile.
TEST_P(OpsAttention, Sinks) {
  expect_right({{1}, 2, 1, 16, 0, true});
  expect_right({{70, 1, 33}, 4, 2, 64, 0, true});
  expect_right({{5, 0, 300}, 8, 1, 48, 0, true});
  expect_right({{128, 128}, 2, 2, 64, 0, true});
  for (const std::int64_t window : {1, 127, 128, 129}) expect_right({{128, 200, 3}, 4, 2, 64, window, true});
}

// A sink far above all scores takes everything, one far below nothing; neither overflows.
TEST_P(OpsAttention, SinksAtTheExtremes) {
  const Case c = {{40}, 2, 2, 16, 0, true};
  Inputs in(c, dtype());
  in.sinks = {1000, -1000};
  TestBench bench(device());
  Layout layout(bench, dtype(), c, in);
  const Results actual = layout.run(bench), expected = reference_results(c, in, exact);
  EXPECT_LE(testing::relative_error(actual.out, expected.out), dtype() == DType::f32 ? 2e-6 : 6e-3);
  EXPECT_LE(testing::relative_error(actual.lse, expected.lse), 1e-6);
  EXPECT_EQ(actual.dsinks, (std::vector<double>{0, 0}));
}

// Several blocks of keys at once, so that the gradient of q is put aside and taken up again.
TEST_P(OpsAttention, LongDocument) {
  expect_right({{700}, 2, 1, 32});
  expect_right({{700, 600}, 2, 1, 32, 290});
}

// Scores of a few hundred: exponentials overflow unless the maximum is subtracted, and probabilities are 0 and 1.
TEST_P(OpsAttention, LargeScores) {
  const Case c = {{150}, 2, 2, 32};
  Inputs in(c, dtype());
  for (double& x : in.q) x *= 64;
  TestBench bench(device());
  Layout layout(bench, dtype(), c, in);
  const Results actual = layout.run(bench), expected = reference_results(c, in, exact);
  EXPECT_LE(testing::relative_error(actual.out, expected.out), dtype() == DType::f32 ? 1e-4 : 1e-2);
  EXPECT_LE(testing::relative_error(actual.lse, expected.lse), 1e-6);
  EXPECT_LE(testing::relative_error(actual.dv, expected.dv), dtype() == DType::f32 ? 1e-4 : 1e-2);
}

TEST_P(OpsAttention, PackedDocumentsEqualSeparateCalls) {
  const Case packed = {{1, 37, 64, 300, 5}, 6, 2, 48, 100};
  const Inputs in(packed, dtype());
  TestBench bench(device());
  Layout layout(bench, dtype(), packed, in);
  const Results together = layout.run(bench);
  Results apart;
  for (std::size_t d = 0; d < packed.documents.size(); ++d) {
    const std::int64_t begin = layout.offsets[d], end = layout.offsets[d + 1];
    const std::vector<std::int32_t> offsets = {0, packed.documents[d]};
    AttentionSpec spec = layout.spec;
    spec.cu_seqlens = bench.indices(offsets);
    spec.host_cu_seqlens = offsets;
    const auto rows = [&](auto view) { return view.slice_rows(begin, end); };
    const View out = bench.poisoned(dtype(), rows(layout.tensors.out).shape());
    const View lse = bench.poisoned(DType::f32, rows(layout.tensors.lse).shape());
    const View dq = bench.poisoned(dtype(), out.shape());
    const View dk = bench.poisoned(dtype(), rows(layout.tensors.k).shape()), dv = bench.poisoned(dtype(), dk.shape());
    const AttentionTensors t = {rows(layout.tensors.q), rows(layout.tensors.k), rows(layout.tensors.v), out, lse};
    attention_forward(bench.exec, t, spec);
    attention_backward(bench.exec, {dq, dk, dv}, rows(layout.dout), t, spec);
    for (const auto& [all, one] :
         {std::pair{&apart.out, out}, {&apart.lse, lse}, {&apart.dq, dq}, {&apart.dk, dk}, {&apart.dv, dv}}) {
      const std::vector<double> values = bench.read(one);
      all->insert(all->end(), values.begin(), values.end());
    }
  }
  if (device() == Device::cpu) {
    EXPECT_EQ(together.out, apart.out);
    EXPECT_EQ(together.lse, apart.lse);
    EXPECT_EQ(together.dq, apart.dq);
    EXPECT_EQ(together.dk, apart.dk);
    EXPECT_EQ(together.dv, apart.dv);
    return;
  }
  const double allowed = dtype() == DType::f32 ? 1e-5 : 1e-2;
  EXPECT_LE(testing::relative_error(together.out, apart.out), allowed);
  EXPECT_LE(testing::relative_error(together.lse, apart.lse), 1e-5);
  EXPECT_LE(testing::relative_error(together.dq, apart.dq), allowed);
  EXPECT_LE(testing::relative_error(together.dk, apart.dk), allowed);
  EXPECT_LE(testing::relative_error(together.dv, apart.dv), allowed);
}

// A few threads take documents whole, many take them in pieces; the bits are the same. On CUDA: run after run.
TEST_P(OpsAttention, SameBitsOnAnyNumberOfThreads) {
  const int threads_before = backend::cpu::threads();
  for (const Case& c : {Case{{600, 70, 3}, 4, 2, 48}, Case{{300}, 3, 1, 16, 77}, Case{{64, 64, 64, 64}, 2, 2, 80}}) {
    SCOPED_TRACE(c.name());
    const Inputs in(c, dtype());
    Results first;
    for (const int threads : {1, 2, 3, 16}) {
      backend::cpu::set_threads(threads);
      TestBench bench(device());
      Layout layout(bench, dtype(), c, in);
      const Results results = layout.run(bench);
      if (threads == 1) first = results;
      EXPECT_EQ(results.out, first.out) << threads;
      EXPECT_EQ(results.lse, first.lse) << threads;
      EXPECT_EQ(results.dq, first.dq) << threads;
      EXPECT_EQ(results.dk, first.dk) << threads;
      EXPECT_EQ(results.dv, first.dv) << threads;
    }
  }
  backend::cpu::set_threads(threads_before);
}

// The plan takes what the run takes, whatever documents it imagines.
TEST_P(OpsAttention, PlansItsScratch) {
  const Case c = {{40, 90}, 4, 2, 48};
  TestBench bench(device());
  Layout layout(bench, dtype(), c, Inputs(c, dtype()));
  const std::size_t before = bench.exec.arena().used();
  layout.run(bench);
  EXPECT_EQ(bench.exec.arena().used(), before);
  backend::Exec planner = backend::Exec::planner(device());
  const std::vector<std::int32_t> one_document = {0, 130};
  layout.spec.host_cu_seqlens = one_document;
  attention_forward(planner, layout.tensors, layout.spec);
  attention_backward(planner, layout.grads, layout.dout, layout.tensors, layout.spec);
  EXPECT_EQ(planner.arena().used(), 0u);
  EXPECT_EQ(planner.arena().peak(), bench.exec.arena().peak() - before);
}

TEST_P(OpsAttention, RejectsWrongShapes) {
  const Case c = {{40}, 4, 2, 16};
  TestBench bench(device());
  Layout layout(bench, dtype(), c, Inputs(c, dtype()));
  AttentionTensors wrong = layout.tensors;
  wrong.v = wrong.v.slice(1, 0, 1);
  EXPECT_THROW(attention_forward(bench.exec, wrong, layout.spec), InternalError);
  const std::vector<std::int32_t> short_offsets = {0, 39};
  layout.spec.host_cu_seqlens = short_offsets;
  EXPECT_THROW(attention_forward(bench.exec, layout.tensors, layout.spec), InternalError);
}

INSTANTIATE_TEST_SUITE_P(Devices, OpsAttention,
                         ::testing::Combine(::testing::ValuesIn(testing::devices()),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) {
                           return testing::case_name(std::get<0>(info.param), std::get<1>(info.param));
                         });

// The reference's gradients are the derivatives of its forward pass: d/dx Σ out ∘ dout by complex step.
TEST(OpsAttentionReference, GradientsAreDerivatives) {
  using Complex = std::complex<double>;
  for (const auto& [window, sinks] : {std::pair{0, false}, {2, false}, {0, true}, {3, true}}) {
    const Case c = {{1, 5, 3}, 4, 2, 3, window, sinks};
    const Inputs in(c, DType::f64);
    const auto offsets = c.offsets();
    const reference::AttentionShape shape = {c.heads, c.kv_heads, c.head_size, scale_of(c), window, offsets};
    const Results expected = reference_results(c, in, exact);
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
        reference::attention_forward(out, lse, inputs[0], inputs[1], inputs[2], shape, exact, inputs[3]);
        double sum = 0;
        for (std::size_t i = 0; i < out.size(); ++i) sum += out[i].imag() * in.dout[i];
        derivative.push_back(sum / step);
        x -= Complex(0, step);
      }
      EXPECT_LE(testing::relative_error(*gradients[which], derivative), 1e-12) << "input " << which;
    }
  }
}

}  // namespace
}  // namespace inlay::ops
