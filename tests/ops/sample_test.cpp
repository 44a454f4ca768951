#include "ops/sample.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "op_cases.h"
#include "ops/gumbel.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

constexpr double infinity = std::numeric_limits<double>::infinity();

// One float at a time: what both devices do in their own ways.
struct PlainMath {
  using Float = float;
  using Word = std::uint32_t;
  static Word bits(Float x) { return std::bit_cast<Word>(x); }
  static std::int32_t signed_bits(Word x) { return static_cast<std::int32_t>(x); }
  static Float from_bits(Word x) { return std::bit_cast<Float>(x); }
  static Float number(Word x) { return static_cast<float>(x); }
  static Float number(std::int32_t x) { return static_cast<float>(x); }
  static Float splat(float x) { return x; }
  static Float select(bool mask, Float yes, Float no) { return mask ? yes : no; }
  static Float fused(Float a, Float b, Float c) { return std::fma(a, b, c); }
};

std::uint32_t noise_word(std::uint64_t seed, std::int64_t sequence, std::int64_t position, std::int64_t entry) {
  const auto block = static_cast<std::uint64_t>(gumbel_block(entry));
  return Philox{seed}.words(block, gumbel_stream(sequence, position))[static_cast<std::size_t>(entry / 16 % 4)];
}

std::int32_t reference_draw(const std::vector<double>& logits, const SampleSpec& spec, std::int64_t row) {
  std::int32_t best = 0;
  float top = -std::numeric_limits<float>::infinity();
  for (std::size_t v = 0; v < logits.size(); ++v) {
    const std::uint32_t word =
        noise_word(spec.seed, spec.first_sequence + row, spec.position, static_cast<std::int64_t>(v));
    const float score = std::fma(static_cast<float>(logits[v]), 1.0f / spec.temperature, gumbel<PlainMath>(word));
    if (score > top) top = score, best = static_cast<std::int32_t>(v);
  }
  return best;
}

class OpsSample : public ::testing::TestWithParam<Device> {
 protected:
  std::vector<std::int32_t> draw(const std::vector<double>& logits, std::int64_t rows, const SampleSpec& spec) const {
    TestBench bench(GetParam());
    const auto vocab = static_cast<std::int64_t>(logits.size()) / rows;
    const View dense = bench.tensor(DType::f32, {rows, vocab}, logits);
    const Window wide = strided(bench, DType::f32, rows, vocab, logits);
    const View ids = bench.indices(std::vector<std::int32_t>(static_cast<std::size_t>(rows), -7));
    const View again = bench.indices(std::vector<std::int32_t>(static_cast<std::size_t>(rows), -7));
    sample(bench.exec, ids, dense, spec);
    sample(bench.exec, again, wide.view, spec);
    EXPECT_EQ(bench.read_indices(again), bench.read_indices(ids)) << "strided rows";
    return bench.read_indices(ids);
  }
};

TEST(OpsGumbel, IsTheDoubleLogarithm) {
  std::vector<std::uint32_t> words = {0u, 1u, 2u, 255u, 1u << 20, 1u << 31, 0x4afb0ccbu, 0x4afb0cccu, 0xffffff00u};
  for (std::uint64_t i = 0; i < 20000; ++i) words.push_back(Philox{5}.words(i)[0]);
  for (const std::uint32_t word : words) {
    const double w = (word + 0.5) * 0x1p-32, exponential = -std::log1p(-w), expected = -std::log(exponential);
    // Two logarithms of two units in the last place each; and u = 1 - w is rounded to 2^-25, which shows where it is
    // small.
    const double allowed = 0x1p-21 * std::max(1.0, std::abs(expected)) + 0x1p-25 / (1 - w) / exponential;
    ASSERT_NEAR(gumbel<PlainMath>(word), expected, allowed) << word;
  }
  EXPECT_GT(gumbel<PlainMath>(0), 22.8f);
  EXPECT_TRUE(std::isfinite(gumbel<PlainMath>(0xffffffffu)));
  EXPECT_LT(gumbel<PlainMath>(0xffffffffu), -2.8f);
}

TEST_P(OpsSample, GreedyTakesTheLargestAndTheLowestOfEquals) {
  for (const std::int64_t vocab : {1, 2, 15, 16, 17, 64, 100, 3001}) {
    const std::int64_t rows = 5;
    std::vector<double> logits = rounded(random_values(rows * vocab, 11), DType::f32);
    std::vector<std::int32_t> expected;
    for (std::int64_t row = 0; row < rows; ++row) {
      double* at = logits.data() + row * vocab;
      // The largest twice, at places that depend on the row; not a number somewhere else.
      const std::int64_t a = (row * 37 + vocab / 2) % vocab, b = (row * 61 + 3) % vocab, c = (row * 17 + 1) % vocab;
      if (c != a && c != b) at[c] = std::nan("");
      at[a] = at[b] = 9.0;
      expected.push_back(static_cast<std::int32_t>(std::min(a, b)));
    }
    EXPECT_EQ(draw(logits, rows, {}), expected) << vocab;
  }
}

TEST_P(OpsSample, NothingToChooseFromIsTheFirstToken) {
  const std::vector<double> logits = {-infinity, std::nan(""), -infinity, -infinity, -infinity, std::nan("")};
  EXPECT_EQ(draw(logits, 2, {}), (std::vector<std::int32_t>{0, 0}));
  EXPECT_EQ(draw(logits, 2, {.temperature = 1.0f}), (std::vector<std::int32_t>{0, 0}));
}

// Bit for bit on either device, so the devices agree with each other.
TEST_P(OpsSample, DrawsWhatTheReferenceDraws) {
  for (const std::int64_t vocab : {1, 7, 16, 63, 64, 65, 130, 2048, 5003}) {
    const std::int64_t rows = vocab < 100 ? 200 : 24;
    const auto logits = rounded(random_values(rows * vocab, 3, 2.0), DType::f32);
    for (const SampleSpec& spec :
         {SampleSpec{.temperature = 1.0f, .seed = 1},
          SampleSpec{.temperature = 0.7f, .seed = 0xfedcba9876543210u, .first_sequence = 1000, .position = 70000},
          SampleSpec{.temperature = 30.0f, .seed = 2, .position = 1}}) {
      std::vector<std::int32_t> expected;
      for (std::int64_t row = 0; row < rows; ++row) {
        expected.push_back(reference_draw(row_of(logits, row, vocab), spec, row));
      }
      EXPECT_EQ(draw(logits, rows, spec), expected) << vocab << " at " << spec.temperature;
    }
  }
}

// Pearson's statistic over 7 tokens has 6 degrees of freedom: it is above 38 once in a million.
TEST_P(OpsSample, FrequenciesAreTheSoftmaxs) {
  const std::vector<double> row = {0.0, 1.5, -1.0, 2.0, 0.5, -2.5, -infinity, 1.0};
  constexpr std::int64_t rows = 2000, positions = 20;
  std::vector<double> logits;
  for (std::int64_t i = 0; i < rows; ++i) logits.insert(logits.end(), row.begin(), row.end());
  for (const double temperature : {0.5, 1.0, 2.0}) {
    std::vector<double> counts(row.size()), chances;
    double total = 0;
    for (const double logit : row) total += std::exp(logit / temperature);
    for (const double logit : row) chances.push_back(std::exp(logit / temperature) / total);
    for (std::int64_t position = 0; position < positions; ++position) {
      const SampleSpec spec = {.temperature = static_cast<float>(temperature), .seed = 9, .position = position};
      for (const std::int32_t id : draw(logits, rows, spec)) counts[static_cast<std::size_t>(id)] += 1;
    }
    double statistic = 0;
    for (std::size_t v = 0; v < row.size(); ++v) {
      const double expected = chances[v] * rows * positions;
      if (expected == 0) {
        EXPECT_EQ(counts[v], 0) << "a token of probability 0";
      } else {
        statistic += (counts[v] - expected) * (counts[v] - expected) / expected;
      }
    }
    EXPECT_LT(statistic, 38.0) << "temperature " << temperature;
  }
}

TEST_P(OpsSample, NumbersBelongToTheSequenceAndThePositionAlone) {
  const std::int64_t rows = 40, vocab = 300;
  const auto logits = random_values(rows * vocab, 4);
  const SampleSpec spec = {.temperature = 1.0f, .seed = 6, .position = 3};
  const auto all = draw(logits, rows, spec);
  EXPECT_EQ(draw(logits, rows, spec), all);
  for (const std::int64_t row : {0, 1, 39}) {
    SampleSpec alone = spec;
    alone.first_sequence = row;
    EXPECT_EQ(draw(row_of(logits, row, vocab), 1, alone)[0], all[static_cast<std::size_t>(row)]);
  }
  SampleSpec other_seed = spec, other_position = spec, other_sequences = spec;
  other_seed.seed = 7;
  other_position.position = 4;
  other_sequences.first_sequence = 1;
  for (const SampleSpec& other : {other_seed, other_position, other_sequences}) {
    EXPECT_NE(draw(logits, rows, other), all);
  }
}

TEST_P(OpsSample, EveryRowMayStandAtItsOwnPosition) {
  const std::int64_t rows = 5, vocab = 300;
  const auto logits = random_values(rows * vocab, 4);
  TestBench bench(GetParam());
  const View ids = bench.indices(std::vector<std::int32_t>(rows, -7));
  const std::vector<std::int32_t> positions = {9, 0, 3, 3, 70000};
  SampleSpec spec = {.temperature = 1.0f, .seed = 6, .positions = bench.indices(positions)};
  sample(bench.exec, ids, bench.tensor(DType::f32, {rows, vocab}, logits), spec);
  std::vector<std::int32_t> expected;
  for (std::int64_t row = 0; row < rows; ++row) {
    expected.push_back(draw(row_of(logits, row, vocab), 1,
                            {.temperature = 1.0f,
                             .seed = 6,
                             .first_sequence = row,
                             .position = positions[static_cast<std::size_t>(row)]})[0]);
  }
  EXPECT_EQ(bench.read_indices(ids), expected);
}

TEST_P(OpsSample, TheNucleusIsTheFewestTokensWithThatMuchProbability) {
  const auto log = [](double p) { return std::log(p); };
  const std::vector<double> row = {log(0.1), log(0.4), -infinity, log(0.3), log(0.2)};
  const auto kept = [&](const std::vector<double>& logits, float temperature, float top_p) {
    TestBench bench(GetParam());
    const auto vocab = static_cast<std::int64_t>(logits.size());
    std::vector<double> two = logits;  // two rows alike
    two.insert(two.end(), logits.begin(), logits.end());
    const View view = bench.tensor(DType::f32, {2, vocab}, two);
    keep_nucleus(bench.exec, view, temperature, top_p);
    const auto values = bench.read(view);
    std::vector<std::size_t> result;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      EXPECT_EQ(values[i], values[i + logits.size()]);
      if (values[i] != -infinity) result.push_back(i);
    }
    return result;
  };
  using Places = std::vector<std::size_t>;
  EXPECT_EQ(kept(row, 1.0f, 0.01f), (Places{1}));
  EXPECT_EQ(kept(row, 1.0f, 0.39f), (Places{1}));
  EXPECT_EQ(kept(row, 1.0f, 0.41f), (Places{1, 3}));
  EXPECT_EQ(kept(row, 1.0f, 0.71f), (Places{1, 3, 4}));
  EXPECT_EQ(kept(row, 1.0f, 0.95f), (Places{0, 1, 3, 4}));
  EXPECT_EQ(kept(row, 0.5f, 0.5f), (Places{1}));  // squares: 0.16 of 0.3
  EXPECT_EQ(kept(row, 1.0f, 1.0f), (Places{0, 1, 3, 4}));
  // Ties: those of lower ids come first.
  EXPECT_EQ(kept(std::vector<double>(1000, 0.25), 1.0f, 0.0995f).size(), 100u);
  EXPECT_EQ(kept({-3.0, 1.0, 1.0, 1.0, -3.0, 1.0}, 1.0f, 0.4f), (Places{1, 2}));
  // More than are sorted at first: as many as a sort of all of them keeps.
  const auto many = rounded(random_values(5003, 8), DType::f32);
  std::vector<double> order = many;
  std::sort(order.rbegin(), order.rend());
  double total = 0, passed = 0;
  for (const double x : order) total += std::exp(x);
  std::size_t expected = 0;
  while (passed < 0.9 * total) passed += std::exp(order[expected++]);
  EXPECT_EQ(kept(many, 1.0f, 0.9f).size(), expected);
}

TEST_P(OpsSample, RejectsNegativeTemperaturesAndShapesThatDoNotFit) {
  TestBench bench(GetParam());
  const View logits = bench.tensor(DType::f32, {2, 3}, std::vector<double>(6)), ids = bench.indices({0, 0});
  EXPECT_THROW(sample(bench.exec, ids, logits, {.temperature = -1.0f}), InternalError);
  EXPECT_THROW(sample(bench.exec, ids, logits, {.temperature = std::nanf("")}), InternalError);
  EXPECT_THROW(sample(bench.exec, bench.indices({0}), logits, {}), InternalError);
}

INSTANTIATE_TEST_SUITE_P(All, OpsSample, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::ops
