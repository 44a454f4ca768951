#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "backend/cuda/context.h"
#include "ops/attention/rules/cuda_text.h"
#include "ops/attention/rules/device_files.h"
#include "ops/attention/rules/parse.h"
#include "support/files.h"

// The language of attention's rules: what is read, what is refused, and that tiles are never called empty or full that
// are not.
namespace inlay::ops::rules {
namespace {

constexpr Place somewhere = {.head = 3, .document = 2, .length = 100, .prefix_length = 7, .heads = 8, .bias = 0.25f};

bool sees(std::string_view mask, float q, float k) {
  Expressions expressions;
  return evaluate(expressions, parse_mask(expressions, mask), {somewhere, q, k, 0}) != 0;
}

float scored(std::string_view score, float q, float k, float s) {
  Expressions expressions;
  return evaluate(expressions, parse_score(expressions, score), {somewhere, q, k, s});
}

const std::string accepted = "<no error>";
std::string refusal(std::string_view mask, std::string_view score = {}) {
  return testing::user_error_of([&] { AttentionRule::parse(mask, score); });
}

TEST(OpsAttentionRules, Masks) {
  EXPECT_TRUE(sees("causal", 5, 5));
  EXPECT_FALSE(sees("causal", 5, 6));
  EXPECT_TRUE(sees("causal and window(3)", 5, 3));
  EXPECT_FALSE(sees("causal and window(3)", 5, 2));
  EXPECT_TRUE(sees("causal or prefix", 0, 6));
  EXPECT_FALSE(sees("causal or prefix", 0, 7));
  EXPECT_TRUE(sees("not causal", 1, 2));
  EXPECT_TRUE(sees("document and (causal or prefix) and window(4096)", 0, 6));
  EXPECT_TRUE(sees("k <= q and (q - k < 128 or k % 64 == 0)", 500, 64));
  EXPECT_FALSE(sees("k <= q and (q - k < 128 or k % 64 == 0)", 500, 65));
  EXPECT_TRUE(sees("0 <= q - k < 4", 6, 3));
  EXPECT_FALSE(sees("0 <= q - k < 4", 6, 2));
  EXPECT_TRUE(sees("q // 8 == k // 8", 23, 16));
  EXPECT_FALSE(sees("q // 8 == k // 8", 24, 16));
  EXPECT_TRUE(sees("h == 3 and q_doc == k_doc and q_doc == 2 and length == 100 and heads == 8", 0, 0));
  EXPECT_TRUE(sees("true or q / 0 < 1", 1, 1));
}

TEST(OpsAttentionRules, Scores) {
  EXPECT_FLOAT_EQ(scored("s", 1, 2, 3.5f), 3.5f);
  EXPECT_FLOAT_EQ(scored("softcap(50)", 1, 2, 60), 50 * std::tanh(1.2f));
  EXPECT_FLOAT_EQ(scored("s - 0.5*abs(q-k)", 1, 9, 3), -1);
  EXPECT_FLOAT_EQ(scored("head_bias", 1, 9, 3), 3.25f);
  EXPECT_FLOAT_EQ(scored("softcap(2) then s + 1 then s * s", 1, 2, 1), std::pow(2 * std::tanh(0.5f) + 1, 2.0f));
  EXPECT_FLOAT_EQ(scored("where(causal, s, s - 1)", 1, 2, 1), 0);
  EXPECT_FLOAT_EQ(scored("min(s, q, 3) + max(1, k) - -s / 2 + exp(0) + log(1) + floor(1.7)", 4, 5, 6), 3 + 5 + 3 + 2);
  EXPECT_FLOAT_EQ(scored("1e1 + .5e0", 0, 0, 0), 10.5f);
}

// 2^(−8 (h + 1) / heads) for a power of two; beyond it, every other one of twice as many heads (the paper's way).
TEST(OpsAttentionRules, AlibiSlopes) {
  Expressions expressions;
  const Term slope = expressions.alibi_slope();
  for (const int heads : {1, 2, 8, 12, 16, 32, 40, 64, 128}) {
    const int power = 1 << static_cast<int>(std::log2(heads));
    for (int h = 0; h < heads; ++h) {
      Place place = somewhere;
      place.head = static_cast<float>(h);
      place.heads = static_cast<float>(heads);
      const double exponent = h < power ? -8.0 * (h + 1) / power : -4.0 * (2 * (h - power) + 1) / power;
      EXPECT_NEAR(evaluate(expressions, slope, {place, 0, 0, 0}), std::exp2(exponent), 1e-6) << h << " of " << heads;
    }
  }
}

TEST(OpsAttentionRules, MistakesNameTheirColumn) {
  EXPECT_EQ(refusal("casual"), R"x(attention mask "casual", column 1: unknown name "casual"; did you mean "causal"?)x");
  EXPECT_EQ(refusal("causal and"),
            R"x(attention mask "causal and", column 11: expected a number, a name or "(", found the end)x");
  EXPECT_EQ(refusal("causal causal"),
            R"x(attention mask "causal causal", column 8: expected an operator or the end, found "causal")x");
  EXPECT_EQ(refusal("q + 1"),
            R"x(attention mask "q + 1", column 6: expected a comparison or a mask before this, found a number)x");
  EXPECT_EQ(
      refusal("causal + 1 < 2"),
      R"x(attention mask "causal + 1 < 2", column 8: expected a number before this, found what is true or false)x");
  EXPECT_EQ(refusal("s < 1"), R"x(attention mask "s < 1", column 1: a mask cannot depend on the score s)x");
  EXPECT_EQ(refusal("", "softcap(0)"),
            R"x(attention score "softcap(0)", column 11: softcap's limit is 0, expected more than 0)x");
  EXPECT_EQ(refusal("window 4"), R"x(attention mask "window 4", column 8: expected "(", found "4")x");
  EXPECT_EQ(refusal("1.2.3 < q"), R"x(attention mask "1.2.3 < q", column 1: "1.2.3" is not a number)x");
  EXPECT_NE(refusal("q & k"), accepted);
  EXPECT_NE(refusal("and causal"), accepted);
  EXPECT_NE(refusal("", "causal"), accepted);
  EXPECT_NE(refusal("", "s then"), accepted);
  EXPECT_NE(refusal("\xff\xfe"), accepted);
}

TEST(OpsAttentionRules, HostileTextEndsInAnError) {
  EXPECT_NE(refusal(std::string(2000, '(')), accepted);
  EXPECT_NE(refusal("", std::string(4000, '-') + "s"), accepted);
  std::string nots;
  for (int i = 0; i < 900; ++i) nots += "not ";
  EXPECT_NE(refusal(nots + "causal"), accepted);
  EXPECT_NE(refusal(std::string(5000, ' ') + "causal"), accepted);
  std::string many = "0 == 1";
  for (int i = 0; i < 400; ++i) many += fmt::format(" or q=={}", i);
  EXPECT_NE(refusal(many.substr(0, 4000)), accepted);
}

TEST(OpsAttentionRules, KnowsCausalWindows) {
  const auto window = [](std::string_view mask, std::string_view score = {}) {
    return AttentionRule::parse(mask, score)->causal_window();
  };
  EXPECT_EQ(window(""), 0);
  EXPECT_EQ(window("document and causal"), 0);
  EXPECT_EQ(window("q >= k"), 0);
  EXPECT_EQ(window("window(128) and causal and document"), 128);
  EXPECT_EQ(window("k <= q and q - k < 5"), 5);
  EXPECT_EQ(window("window(128)"), std::nullopt);
  EXPECT_EQ(window("causal and window(1.5)"), std::nullopt);
  EXPECT_EQ(window("causal or prefix"), std::nullopt);
  EXPECT_EQ(window("causal", "softcap(50)"), std::nullopt);
}

// Composed in C++, a rule is the one that the text means.
TEST(OpsAttentionRules, ComposeInCode) {
  Expressions e;
  const Term mask = e.both(e.causal(), e.either(e.window(e.number(128)), e.negation(e.prefix())));
  const Term score = e.alibi(e.softcap(e.make(Op::score), e.number(50)), e.number(0.5f));
  const AttentionRule composed(e, mask, score);
  const auto parsed = AttentionRule::parse("causal and (window(128) or not prefix)", "softcap(50) then alibi(0.5)");
  for (int q = 0; q < 300; q += 7) {
    for (int k = 0; k < 300; k += 11) {
      const Pair pair = {somewhere, static_cast<float>(q), static_cast<float>(k), 0.01f * static_cast<float>(q - k)};
      ASSERT_EQ(evaluate(composed.expressions(), composed.mask(), pair),
                evaluate(parsed->expressions(), parsed->mask(), pair));
      ASSERT_EQ(evaluate(composed.expressions(), composed.slope(), pair),
                evaluate(parsed->expressions(), parsed->slope(), pair));
    }
  }
}

// Random expressions, deep enough for everything to meet everything.
class RandomText {
 public:
  explicit RandomText(unsigned seed) : random_(seed) {}

  std::string truth(int depth) {
    switch (depth == 0 ? pick(3) : pick(8)) {
      case 0: return "causal";
      case 1: return fmt::format("window({})", 1 + pick(40));
      case 2: return "prefix";
      case 3: return fmt::format("({} and {})", truth(depth - 1), truth(depth - 1));
      case 4: return fmt::format("({} or {})", truth(depth - 1), truth(depth - 1));
      case 5: return fmt::format("not {}", truth(depth - 1));
      default: {
        static constexpr const char* signs[] = {"<", "<=", ">", ">=", "==", "!="};
        return fmt::format("({} {} {})", number(depth - 1), signs[pick(6)], number(depth - 1));
      }
    }
  }

  std::string number(int depth) {
    if (depth <= 0) {
      switch (pick(6)) {
        case 0: return "k";
        case 1: return fmt::format("{}", pick(64));
        case 2: return fmt::format("{:.2f}", 0.01 * pick(500));
        case 3: return "h";
        default: return "q";
      }
    }
    const std::string a = number(depth - 1), b = number(depth - 1);
    switch (pick(13)) {
      case 0: return fmt::format("({} + {})", a, b);
      case 1: return fmt::format("({} * {})", a, b);
      case 2: return fmt::format("({} / {})", a, b);
      case 3: return fmt::format("({} // {})", a, b);
      case 4: return fmt::format("({} % {})", a, b);
      case 5: return fmt::format("min({}, {})", a, b);
      case 6: return fmt::format("max({}, {})", a, b);
      case 7: return fmt::format("abs(-{})", a);
      case 8: return fmt::format("tanh({})", a);
      case 9: return fmt::format("exp({})", a);
      case 10: return fmt::format("log({})", a);
      case 11: return fmt::format("where({}, {}, {})", truth(depth - 1), a, b);
      default: return fmt::format("({} - {})", a, b);
    }
  }

  int pick(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }

 private:
  std::mt19937 random_;
};

// An empty tile has no pair that is seen, a full one no pair that is not; and tiles are told apart at all.
TEST(OpsAttentionRules, TilesAreNeverCalledWrongly) {
  int told = 0, partial = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    RandomText text(seed);
    const std::string mask = text.truth(3);
    std::shared_ptr<const AttentionRule> rule;
    try {
      rule = AttentionRule::parse(mask);
    } catch (const UserError&) {
      continue;  // a constant part may be no truth any more for the parser to complain about; too long ones
    }
    for (int trial = 0; trial < 8; ++trial) {
      const int q = text.pick(90), k = text.pick(90), rows = 1 + text.pick(9), columns = 1 + text.pick(9);
      const auto tile = rule->classify(somewhere, q, q + rows - 1, k, k + columns - 1);
      int seen = 0;
      for (int i = q; i < q + rows; ++i) {
        for (int j = k; j < k + columns; ++j) {
          const Pair pair = {somewhere, static_cast<float>(i), static_cast<float>(j), 0};
          seen += evaluate(rule->expressions(), rule->mask(), pair) != 0;
        }
      }
      const int most = tile == AttentionRule::Tile::empty ? 0 : rows * columns;
      const int least = tile == AttentionRule::Tile::full ? rows * columns : 0;
      ASSERT_TRUE(least <= seen && seen <= most) << mask << " at " << q << ", " << k << " sees " << seen;
      ++(tile == AttentionRule::Tile::partial ? partial : told);
    }
  }
  EXPECT_GT(told, 2 * partial);
}

// The usual masks are told exactly.
TEST(OpsAttentionRules, UsualMasksAreToldExactly) {
  for (const char* mask : {"causal", "causal and window(100)", "causal or prefix", "abs(q - k) < 70",
                           "document and (causal or prefix) and window(65)", "q // 64 == k // 64"}) {
    const auto rule = AttentionRule::parse(mask);
    for (int q = 0; q < 320; q += 64) {
      for (int k = 0; k < 320; k += 64) {
        int seen = 0;
        for (int i = q; i < q + 64; ++i) {
          for (int j = k; j < k + 64; ++j) {
            const Pair pair = {somewhere, static_cast<float>(i), static_cast<float>(j), 0};
            seen += evaluate(rule->expressions(), rule->mask(), pair) != 0;
          }
        }
        using enum AttentionRule::Tile;
        EXPECT_EQ(rule->classify(somewhere, q, q + 63, k, k + 63), seen == 0      ? empty
                                                                   : seen == 4096 ? full
                                                                                  : partial)
            << mask << " at " << q << ", " << k;
      }
    }
  }
}

// The derivative against central differences of the value, both in fp32: h² from the one, rounding / h from the other.
TEST(OpsAttentionRules, DerivativesAreThoseOfTheScores) {
  for (const char* score : {"softcap(50)", "alibi", "s * s * 0.1 then softcap(3)", "exp(s / 4) - log(2 + s * s)",
                            "min(s, 2 * s) + max(s, 1) - abs(s + 0.3)", "tanh(s) / (1 + exp(-s))", "s % 7 + s // 3",
                            "where(q - k < 4, 3 * s, s * q / 8) then head_bias", "-s / (s * s + 1)", "5"}) {
    const auto rule = AttentionRule::parse("causal", score);
    for (const float s : {-2.6f, -1.1f, -0.4f, 0.17f, 0.55f, 1.3f, 2.2f}) {
      for (const float k : {0.0f, 5.0f, 9.0f}) {
        const auto value = [&](float x) {
          return static_cast<double>(evaluate(rule->expressions(), rule->score(), {somewhere, 9, k, x}));
        };
        constexpr float step = 1.0f / 128;
        const double difference = (value(s + step) - value(s - step)) / (2 * step);
        const double slope = evaluate(rule->expressions(), rule->slope(), {somewhere, 9, k, s});
        EXPECT_NEAR(slope, difference, 2e-3 * std::max(1.0, std::abs(slope))) << score << " at " << s << ", " << k;
      }
    }
  }
}

// Kernels divide whole numbers by constants without dividing.
TEST(OpsAttentionRules, QuotientsRoundAsDivisionsDo) {
  std::mt19937_64 random(5);
  for (const float b :
       {3.0f, 5.0f, 7.0f, 10.0f, 48.0f, 100.0f, 1023.0f, 4097.0f, 65537.0f, 16777213.0f, -3.0f, -999.0f}) {
    const float inverse = 1.0f / b;
    for (int a = -300000; a <= 300000; ++a) {
      const auto number = static_cast<float>(a);
      ASSERT_EQ(quotient(number, b, inverse), number / b) << a << " / " << b;
    }
    for (int i = 0; i < 300000; ++i) {
      const auto number = static_cast<float>(static_cast<std::int64_t>(random() >> 4) >> random() % 60);
      ASSERT_EQ(quotient(number, b, inverse), number / b) << number << " / " << b;
    }
  }
}

// The device code of every head size compiles, without a GPU.
TEST(OpsAttentionRules, DeviceCodeCompiles) {
  if (!backend::cuda::built()) GTEST_SKIP() << "built without CUDA";
  const testing::TempFolder folder;
  const testing::Setting cache("XDG_CACHE_HOME", folder.path().string());
  const auto rule = AttentionRule::parse(
      "document and (causal or prefix) and (window(4096) or k % 64 == 0) and q // 3 < exp(k) / 3 + log(k + 1) / q",
      "softcap(50) then alibi then head_bias then where(q > k, s, min(s, -s) + max(tanh(s), floor(s)))");
  for (const auto& [pass, head_size] : {std::pair{Pass::forward, 64},
                                        {Pass::backward, 96},
                                        {Pass::forward, 128},
                                        {Pass::backward, 128},
                                        {Pass::forward, 256},
                                        {Pass::backward, 256}}) {
    const auto compiled = backend::cuda::compile_at_run_time({.what = "a test",
                                                              .text = cuda_program(*rule, pass, head_size),
                                                              .files = device_files(),
                                                              .architecture = "sm_90a"},
                                                             [](std::string_view) {});
    EXPECT_FALSE(compiled.code.empty()) << compiled.error;
  }
}

}  // namespace
}  // namespace inlay::ops::rules
