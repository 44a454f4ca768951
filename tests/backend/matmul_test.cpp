#include "backend/matmul.h"
#include "backend/cpu/threads.h"

#include <gtest/gtest.h>
#include <cstring>
#include <functional>
#include <limits>
#include <tuple>

#include "backend/cpu/gemm.h"
#include "backend/cpu/gemm_kernels.h"
#include "backend/cpu/tile_scope.h"
#include "backend/thread_count.h"
#include "support/device_tensors.h"

// Products against fp64 sums of the rounded operands. C lies in a larger, poisoned frame: what is past its edges must
// stay as it was, and with beta = 0 what was in it must not come through.
namespace inlay::testing {

namespace {

using backend::MatmulScale;
using backend::Transpose;
using backend::cpu::GemmArgs;

struct Extents {
  std::int64_t m, n, k;
};

// Edges of tiles (16, 32), of vectors (16), of the blocks for the caches, and what lies one beside them.
const std::vector<Extents>& awkward() {
  static const std::vector<Extents> list = {{1, 1, 1},    {1, 1, 37},    {5, 1, 64},    {1, 33, 2},    {3, 47, 31},
                                            {16, 16, 32}, {17, 31, 33},  {32, 32, 31},  {33, 64, 96},  {64, 48, 65},
                                            {67, 101, 7}, {13, 19, 330}, {130, 70, 41}, {37, 290, 129}};
  return list;
}

std::string text(const Extents& x) { return fmt::format("{} x {} x {}", x.m, x.n, x.k); }

// What a matrix is made of: rounded numbers, and how they lie in memory.
struct Operand {
  std::vector<double> values;               // op(X), row-major, as rounded
  std::vector<double> stored;               // X with its padding
  std::int64_t rows = 0, cols = 0, ld = 0;  // of X as stored
};

// Numbers enough for any operand, cheaper than as many normal ones: a prime number of them, over and over.
std::vector<double> numbers(std::int64_t count, std::uint64_t seed) {
  constexpr std::int64_t period = 10007;
  const auto pool = random_values(period, seed);
  std::vector<double> result(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    result[static_cast<std::size_t>(i)] = pool[static_cast<std::size_t>(i % period)];
  return result;
}

Operand operand(DType dtype, std::int64_t rows, std::int64_t cols, bool transposed, std::int64_t padding,
                std::uint64_t seed) {
  Operand x;
  x.values = rounded(numbers(rows * cols, seed), dtype);
  x.rows = transposed ? cols : rows;
  x.cols = transposed ? rows : cols;
  x.ld = x.cols + padding;
  // The padding holds NaN: reading it spoils the result.
  x.stored.assign(static_cast<std::size_t>(x.rows * x.ld), std::numeric_limits<double>::quiet_NaN());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      x.stored[static_cast<std::size_t>(transposed ? j * x.ld + i : i * x.ld + j)] =
          x.values[static_cast<std::size_t>(i * cols + j)];
    }
  }
  return x;
}

// What is expected, and the size of the terms it is made of: what cancels in a sum still rounds.
struct Expected {
  std::vector<double> values, magnitudes;
};

Expected reference(const Extents& x, const Operand& a, const Operand& b, double alpha, double beta,
                   const std::vector<double>& c) {
  const auto size = static_cast<std::size_t>(x.m * x.n);
  Expected result{std::vector<double>(size, 0.0), std::vector<double>(size, 0.0)};
  for (std::int64_t i = 0; i < x.m; ++i) {
    double* const row = result.values.data() + i * x.n;
    double* const magnitude = result.magnitudes.data() + i * x.n;
    for (std::int64_t k = 0; k < x.k; ++k) {
      const double factor = alpha * a.values[static_cast<std::size_t>(i * x.k + k)];
      const double* const other = b.values.data() + k * x.n;
      for (std::int64_t j = 0; j < x.n; ++j) {
        row[j] += factor * other[j];
        magnitude[j] += std::abs(factor * other[j]);
      }
    }
    if (beta != 0.0) {
      for (std::int64_t j = 0; j < x.n; ++j) {
        const double old = beta * c[static_cast<std::size_t>(i * x.n + j)];
        row[j] += old;
        magnitude[j] += std::abs(old);
      }
    }
  }
  return result;
}

// Every element: half a unit in the last place of what is stored, and fp32 sums whose errors add up like a random walk.
// The GPU's tensor cores cut where others round, hence the slack; and with beta, cuBLASLt may round the product to the
// output's dtype before it adds C.
void expect_close(const std::vector<double>& actual, const Expected& expected, DType out, std::int64_t k, Device device,
                  float beta) {
  ASSERT_EQ(actual.size(), expected.values.size());
  const double storage = out == DType::bf16 ? 0x1p-8 : out == DType::f16 ? 0x1p-11 : 0x1p-24;
  const double smallest = out == DType::f16 ? 0x1p-25 : 0x1p-126;
  const double sums = (4 + 2 * std::sqrt(static_cast<double>(k))) * 0x1p-24 * (device == Device::cuda ? 4 : 1);
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected.values[i]);
    const double twice =
        device == Device::cuda && beta != 0.0f && out != DType::f32 ? storage * expected.magnitudes[i] : 0.0;
    const double bound =
        1.01 * storage * std::abs(expected.values[i]) + sums * expected.magnitudes[i] + twice + smallest;
    if (!(error <= bound) && wrong++ == 0) first = i;  // a NaN is wrong
  }
  EXPECT_EQ(wrong, 0u) << "first at element " << first << ": " << actual[first] << ", expected "
                       << expected.values[first] << " of terms " << expected.magnitudes[first];
}

// Any function with the arguments of gemm(), and the bytes of workspace that it asks for.
struct Gemm {
  std::function<void(const GemmArgs&, DType, DType)> multiply;
  std::function<std::size_t(const GemmArgs&, DType)> workspace_bytes;

  // With just the workspace that it wants, poisoned, and a guard after it.
  void operator()(GemmArgs args, DType in, DType out) const {
    constexpr std::size_t guard = 4096;
    const std::size_t bytes = workspace_bytes(args, in);
    const std::unique_ptr<std::byte, void (*)(void*)> memory(
        static_cast<std::byte*>(std::aligned_alloc(64, (bytes + guard + 63) / 64 * 64)), std::free);
    std::memset(memory.get(), 0xff, bytes + guard);
    args.workspace = memory.get();
    multiply(args, in, out);
    EXPECT_TRUE(std::all_of(memory.get() + bytes, memory.get() + bytes + guard, [](std::byte byte) {
      return byte == std::byte{0xff};
    })) << "written past the workspace";
  }
};
const Gemm default_gemm = {backend::cpu::gemm, backend::cpu::gemm_workspace_bytes};

struct Case {
  Extents extents;
  DType in, out;
  bool transpose_a, transpose_b;
  float alpha, beta;
  std::int64_t padding;

  std::string str() const {
    return fmt::format("{} {} -> {}, A{} B{}, alpha {}, beta {}, padding {}", text(extents), name_of(in), name_of(out),
                       transpose_a ? "ᵀ" : "", transpose_b ? "ᵀ" : "", alpha, beta, padding);
  }
};

// The C of a case: a frame two rows taller and `padding` wider than C, all of it NaN but C where beta wants it read.
struct Frame {
  View whole, inner;
};

Frame frame(TestBench& bench, const Case& x, const std::vector<double>& values) {
  const std::int64_t ld = x.extents.n + x.padding;
  std::vector<double> stored(static_cast<std::size_t>((x.extents.m + 2) * ld),
                             std::numeric_limits<double>::quiet_NaN());
  if (x.beta != 0.0f) {
    for (std::int64_t i = 0; i < x.extents.m; ++i) {
      std::copy_n(values.begin() + i * x.extents.n, x.extents.n, stored.begin() + (i + 1) * ld);
    }
  }
  const View whole = bench.tensor(x.out, {x.extents.m + 2, ld}, stored);
  return {whole, whole.slice_rows(1, x.extents.m + 1).slice_cols(0, x.extents.n)};
}

std::int64_t count_numbers(const std::vector<double>& values) {
  return std::count_if(values.begin(), values.end(), [](double v) { return !std::isnan(v); });
}

// Calls `product(c, a, b)` on views of the case's device and compares.
template <class Product>
void check_case(TestBench& bench, const Case& x, const Product& product) {
  SCOPED_TRACE(x.str());
  const auto mark = bench.exec.arena().mark();
  const Operand a = operand(x.in, x.extents.m, x.extents.k, x.transpose_a, x.padding, 1);
  const Operand b = operand(x.in, x.extents.k, x.extents.n, x.transpose_b, x.padding, 2);
  const auto old = rounded(numbers(x.extents.m * x.extents.n, 3), x.out);
  const Frame c = frame(bench, x, old);
  const View a_view = bench.tensor(x.in, {a.rows, a.ld}, a.stored).slice_cols(0, a.cols);
  const View b_view = bench.tensor(x.in, {b.rows, b.ld}, b.stored).slice_cols(0, b.cols);
  product(c.inner, a_view, b_view);
  const auto expected = reference(x.extents, a, b, x.alpha, x.beta, old);
  expect_close(bench.read(c.inner), expected, x.out, x.extents.k, bench.exec.device(), x.beta);
  EXPECT_EQ(count_numbers(bench.read(c.whole)), x.extents.m * x.extents.n) << "written past the edges of C";
  bench.exec.arena().release_to(mark);
}

GemmArgs args_of(const Case& x, View c, ConstView a, ConstView b) {
  return {.m = x.extents.m,
          .n = x.extents.n,
          .k = x.extents.k,
          .a = a.data(),
          .lda = a.ld(),
          .transpose_a = x.transpose_a,
          .b = b.data(),
          .ldb = b.ld(),
          .transpose_b = x.transpose_b,
          .c = c.data(),
          .ldc = c.ld(),
          .alpha = x.alpha,
          .beta = x.beta};
}

void check_gemm(TestBench& bench, const Case& x, const Gemm& gemm) {
  check_case(bench, x, [&](View c, ConstView a, ConstView b) { gemm(args_of(x, c, a, b), x.in, x.out); });
}

// Every combination of transposes, scales and strides over the awkward extents.
template <class Check>
void for_all_cases(const std::vector<std::pair<DType, DType>>& dtypes, const Check& check) {
  for (const auto& [in, out] : dtypes) {
    for (const Extents& extents : awkward()) {
      for (int bits = 0; bits < 4; ++bits) {
        int variant = 0;
        for (const auto& [alpha, beta] : std::vector<std::pair<float, float>>{{1, 0}, {1, 1}, {-0.75f, 0.5f}}) {
          check(Case{extents, in, out, (bits & 1) != 0, (bits & 2) != 0, alpha, beta, (variant++ + bits) % 2 * 3});
        }
      }
    }
  }
}

const std::vector<std::pair<DType, DType>>& all_dtypes() {
  static const std::vector<std::pair<DType, DType>> list = {{DType::f32, DType::f32},
                                                            {DType::bf16, DType::bf16},
                                                            {DType::bf16, DType::f32},
                                                            {DType::f16, DType::f16},
                                                            {DType::f16, DType::f32}};
  return list;
}

// The kernels, by name; the ones that cannot run here are left out.
struct Kernel {
  const char* name;
  std::vector<std::pair<DType, DType>> dtypes;
  Gemm gemm;
};

std::vector<Kernel> kernels() {
  std::vector<Kernel> list = {
      {"gemm", all_dtypes(), default_gemm},
      {"vector", all_dtypes(), {backend::cpu::vector_gemm, backend::cpu::vector_workspace_bytes}},
      {"onednn",
       {{DType::f32, DType::f32}},
       {[](const GemmArgs& g, DType, DType) { backend::cpu::onednn_gemm(g); },
        [](const GemmArgs&, DType) { return std::size_t{0}; }}},
  };
  if (backend::cpu::amx_usable()) {
    list.push_back({"amx",
                    {{DType::bf16, DType::bf16}, {DType::bf16, DType::f32}},
                    {[](const GemmArgs& g, DType, DType out) { backend::cpu::amx_gemm(g, out); },
                     [](const GemmArgs& g, DType) { return backend::cpu::amx_workspace_bytes(g); }}});
  }
  return list;
}

class BackendGemm : public ::testing::TestWithParam<std::size_t> {
 protected:
  const Kernel kernel = kernels()[GetParam()];
};

TEST_P(BackendGemm, MatchesDoubleOverAwkwardShapes) {
  TestBench bench(Device::cpu, std::size_t{16} << 20);
  for_all_cases(kernel.dtypes, [&](const Case& x) { check_gemm(bench, x, kernel.gemm); });
}

// Large enough for several blocks along every extent, for partial sums that are put down, and for every thread.
TEST_P(BackendGemm, MatchesDoubleOverBlockEdges) {
  TestBench bench(Device::cpu, std::size_t{256} << 20);
  for (const auto& [in, out] : kernel.dtypes) {
    for (int bits = 0; bits < 4; ++bits) {
      const bool ta = (bits & 1) != 0, tb = (bits & 2) != 0;
      check_gemm(bench, {{301, 67, 1100}, in, out, ta, tb, 0.5f, ta ? 0.0f : 1.0f, 5}, kernel.gemm);
      check_gemm(bench, {{40, 601, 1030}, in, out, ta, tb, 1, tb ? 0.0f : 1.0f, 0}, kernel.gemm);
    }
    // A sum longer than the shared operand's share of memory, and C large enough to be written past the caches.
    check_gemm(bench, {{3, 1, 400001}, in, out, false, true, 1, 0, 0}, kernel.gemm);
    check_gemm(bench, {{1600, 1376, 3}, in, out, false, false, 1, 0, 0}, kernel.gemm);
    // Such a sum for fp32, and so many rows and columns that both are taken in several rounds.
    if (in == DType::f32) check_gemm(bench, {{1030, 1100, 600}, in, out, true, false, 1, 0, 0}, kernel.gemm);
  }
}

// The gradient of a hidden state through a large vocabulary. A sum from its first term to its last would be off by
// about 2^-24 times the square root of their number, 2.1e-5; that of parts by the roots of their length and of their
// number.
TEST(BackendVectorGemm, LongSumsKeepWhatTheirPartsKeep) {
  constexpr std::int64_t part = 320;
  const Extents e{21, 24, 128256};
  TestBench bench(Device::cpu, std::size_t{128} << 20);
  const Case x{e, DType::f32, DType::f32, false, false, 1, 0, 0};
  const Operand a = operand(DType::f32, e.m, e.k, false, 0, 1), b = operand(DType::f32, e.k, e.n, false, 0, 2);
  const View c = bench.poisoned(DType::f32, {e.m, e.n});
  const Gemm vector = {backend::cpu::vector_gemm, backend::cpu::vector_workspace_bytes};
  vector(args_of(x, c, bench.tensor(DType::f32, {e.m, e.k}, a.stored), bench.tensor(DType::f32, {e.k, e.n}, b.stored)),
         DType::f32, DType::f32);
  const double roots = std::sqrt(static_cast<double>(part)) + std::sqrt(static_cast<double>(e.k / part));
  EXPECT_LE(relative_error(bench.read(c), reference(e, a, b, 1, 0, {}).values), roots * 0x1p-24);
}

TEST_P(BackendGemm, GivesTheSameBitsOnOneThreadAndOnMore) {
  TestBench bench(Device::cpu, std::size_t{256} << 20);
  for (const auto& [in, out] : kernel.dtypes) {
    for (const Extents& e : {Extents{257, 300, 1500}, {64, 64, 9000}, {1200, 40, 333}, {33, 2000, 70}}) {
      const auto mark = bench.exec.arena().mark();
      const Case x{e, in, out, true, false, 1, 1, 0};
      const View a = bench.tensor(in, {e.k, e.m}, numbers(e.m * e.k, 4));
      const View b = bench.tensor(in, {e.k, e.n}, numbers(e.n * e.k, 5));
      const auto old = numbers(e.m * e.n, 6);
      std::vector<std::vector<std::byte>> results;
      for (const int threads : {1, 2, 3, 2}) {
        const ThreadCount count(threads);
        const View c = bench.tensor(out, {e.m, e.n}, old);
        kernel.gemm(args_of(x, c, a, b), in, out);
        const auto* const bytes = static_cast<const std::byte*>(c.data());
        results.emplace_back(bytes, bytes + c.bytes());
      }
      for (std::size_t i = 1; i < results.size(); ++i) {
        EXPECT_TRUE(results[i] == results[0]) << x.str() << ", run " << i;
      }
      bench.exec.arena().release_to(mark);
    }
  }
}

// Threads that call it at the same time, from inside a parallel region, must not see each other.
TEST_P(BackendGemm, RunsInsideParallelRegions) {
  const Extents e{70, 50, 90};
  for (const auto& [in, out] : kernel.dtypes) {
    TestBench bench(Device::cpu, std::size_t{16} << 20);
    const Case x{e, in, out, false, true, 1, 0, 0};
    const View a = bench.tensor(in, {e.m, e.k}, numbers(e.m * e.k, 4));
    const View b = bench.tensor(in, {e.n, e.k}, numbers(e.n * e.k, 5));
    const View expected = bench.poisoned(out, {e.m, e.n});
    kernel.gemm(args_of(x, expected, a, b), in, out);
    std::vector<View> c;
    for (int i = 0; i < 8; ++i) c.push_back(bench.poisoned(out, {e.m, e.n}));
#pragma omp parallel for num_threads(4) schedule(static, 1)
    for (int i = 0; i < 8; ++i) {
      kernel.gemm(args_of(x, c[static_cast<std::size_t>(i)], a, b), in, out);
    }
    for (const View& view : c) EXPECT_EQ(std::memcmp(view.data(), expected.data(), view.bytes()), 0) << kernel.name;
  }
}

// A plan is made with the largest batch: no smaller one may want more.
TEST_P(BackendGemm, WorkspaceNeverFallsAsAnExtentGrows) {
  const std::vector<std::int64_t> extents = {1,    2,    11,   12,   13,   31,   32,   33,    127,   128,   129,
                                             255,  256,  257,  300,  511,  512,  513,  1000,  1023,  1024,  1025,
                                             2048, 4095, 4097, 8191, 8192, 8193, 9001, 16385, 40000, 100000};
  const auto bytes = [&](DType in, std::int64_t m, std::int64_t n, std::int64_t k) {
    return kernel.gemm.workspace_bytes({.m = m, .n = n, .k = k}, in);
  };
  for (const int threads : {1, 3}) {
    const ThreadCount count(threads);
    for (const auto& [in, out] : kernel.dtypes) {
      for (const std::int64_t m : extents) {
        for (const std::int64_t n : extents) {
          for (std::size_t i = 1; i < extents.size(); ++i) {
            const std::int64_t k0 = extents[i - 1], k1 = extents[i];
            ASSERT_LE(bytes(in, m, n, k0), bytes(in, m, n, k1)) << m << " x " << n << " x " << k1;
            ASSERT_LE(bytes(in, k0, m, n), bytes(in, k1, m, n)) << k1 << " x " << m << " x " << n;
            ASSERT_LE(bytes(in, m, k0, n), bytes(in, m, k1, n)) << m << " x " << k1 << " x " << n;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, BackendGemm, ::testing::Range(std::size_t{0}, kernels().size()),
                         [](const auto& info) { return std::string(kernels()[info.param].name); });

TEST(BackendGemmEdges, AnEmptySumOnlyScalesC) {
  TestBench bench(Device::cpu, std::size_t{1} << 20);
  for (const auto& [in, out] : all_dtypes()) {
    check_gemm(bench, {{5, 18, 0}, in, out, false, false, 1, 0, 2}, default_gemm);
    check_gemm(bench, {{5, 18, 0}, in, out, true, true, 1, 0.5f, 2}, default_gemm);
    check_gemm(bench, {{5, 18, 9}, in, out, false, true, 0, 1, 2}, default_gemm);
  }
}

TEST(BackendGemmEdges, EmptyResultsTouchNothing) {
  for (const auto& [in, out] : all_dtypes()) {
    backend::cpu::gemm({.m = 0, .n = 5, .k = 3, .lda = 3, .ldb = 5, .ldc = 5}, in, out);
    backend::cpu::gemm({.m = 5, .n = 0, .k = 3, .lda = 3, .ldb = 1, .ldc = 1}, in, out);
    backend::cpu::gemm({.m = 0, .n = 0, .k = 0}, in, out);
  }
}

TEST(BackendGemmEdges, TileScopesNest) {
  TestBench bench(Device::cpu, std::size_t{1} << 20);
  const Case x{{40, 40, 40}, DType::bf16, DType::f32, false, true, 1, 0, 0};
  const backend::cpu::TileScope outer;
  check_gemm(bench, x, default_gemm);
  {
    const backend::cpu::TileScope inner;
    check_gemm(bench, x, default_gemm);
  }
  check_gemm(bench, x, default_gemm);
}

class BackendMatmul : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
};

void check_matmul(TestBench& bench, const Case& x, const float* device_alpha = nullptr, float alpha = 1) {
  const Transpose ta = x.transpose_a ? Transpose::yes : Transpose::no,
                  tb = x.transpose_b ? Transpose::yes : Transpose::no;
  check_case(bench, x, [&](View c, ConstView a, ConstView b) {
    const MatmulScale scale{device_alpha == nullptr ? x.alpha : alpha, x.beta, device_alpha};
    backend::matmul(bench.exec, c, a, ta, b, tb, scale);
  });
}

TEST_P(BackendMatmul, MatchesDouble) {
  TestBench bench(device());
  std::vector<std::pair<DType, DType>> dtypes = {{dtype(), dtype()}};
  if (dtype() != DType::f32) dtypes.emplace_back(dtype(), DType::f32);
  for_all_cases(dtypes, [&](const Case& x) { check_matmul(bench, x); });
}

TEST_P(BackendMatmul, TakesItsFactorFromTheDevice) {
  TestBench bench(device());
  const View factor = bench.tensor(DType::f32, {1}, {0.375});
  for (const float beta : {0.0f, 1.0f}) {
    for (int bits = 0; bits < 4; ++bits) {
      const Case x{{33, 48, 70}, dtype(), DType::f32, (bits & 1) != 0, (bits & 2) != 0, 0.375f * -2, beta, 4};
      check_matmul(bench, x, static_cast<const float*>(factor.data()), -2);
    }
  }
}

// The plan takes what the run takes, and gives it back.
TEST_P(BackendMatmul, PlansWithoutWorkingWhatItTakes) {
  for (const Extents& e : {Extents{8, 16, 32}, {300, 500, 700}, {40, 30, 9001}}) {
    const auto peak = [&](backend::Exec exec) {
      const auto tensor = [&](std::int64_t rows, std::int64_t cols) {
        const View view = exec.arena().keep(MemoryClass::activations, "operand", dtype(), {rows, cols});
        exec.fill_zero(view);
        return view;
      };
      const View c = tensor(e.m, e.n), a = tensor(e.m, e.k), b = tensor(e.n, e.k);
      const std::size_t used = exec.arena().used();
      backend::matmul(exec, c, a, Transpose::no, b, Transpose::yes);
      EXPECT_EQ(exec.arena().used(), used);
      return exec.arena().peak();
    };
    const std::size_t planned = peak(backend::Exec::planner(device()));
    EXPECT_EQ(peak(backend::Exec::runner(device(), planned)), planned) << text(e);
  }
}

TEST_P(BackendMatmul, RefusesWhatDoesNotFit) {
  TestBench bench(device());
  const View c = bench.poisoned(dtype(), {8, 16}), a = bench.poisoned(dtype(), {8, 32}),
             b = bench.poisoned(dtype(), {32, 16});
  EXPECT_THROW(backend::matmul(bench.exec, c, a, Transpose::no, b, Transpose::yes), InternalError);
  EXPECT_THROW(backend::matmul(bench.exec, c, a, Transpose::yes, b, Transpose::no), InternalError);
  const View wrong = bench.poisoned(DType::i32, {8, 32});
  EXPECT_THROW(backend::matmul(bench.exec, c, wrong, Transpose::no, b, Transpose::no), InternalError);
}

INSTANTIATE_TEST_SUITE_P(Devices, BackendMatmul,
                         ::testing::Combine(::testing::ValuesIn(devices()),
                                            ::testing::Values(DType::f32, DType::bf16, DType::f16)),
                         [](const auto& info) { return case_name(std::get<0>(info.param), std::get<1>(info.param)); });

}  // namespace

}  // namespace inlay::testing
