#include "train/generate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/device_tensors.h"
#include "support/fixtures.h"

namespace inlay::testing {
namespace {

class TrainGenerate : public ::testing::TestWithParam<Device> {
 protected:
  TrainGenerate() : fixture_(model_fixtures().back()) { start(); }

  void start() {
    engine_ = fixture_.engine({.device = GetParam(),
                               .training = false,
                               .max_document = 40,
                               .logit_rows = 1,
                               .decode_sequences = 1,
                               .decode_length = 40});
  }

  // The likeliest next token, from a pass over everything so far, of which the first tokens were given.
  std::int32_t likeliest(const std::vector<std::int32_t>& ids, std::size_t given = 0) {
    Document document = {.input_ids = ids, .labels = ids};
    std::fill_n(document.labels.begin(), given, ignore_label);
    const auto last = static_cast<std::int32_t>(ids.size()) - 1;
    const auto logits = engine_->decoder().logits(engine_->exec(), pack(std::span(&document, 1)), {last});
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  Fixture fixture_;
  std::unique_ptr<train::Engine> engine_;
};

TEST_P(TrainGenerate, GreedyIsTheLikeliestTokenOfThePassOverEverything) {
  for (const std::vector<std::int32_t>& prompt : {std::vector<std::int32_t>{3}, {5, 9, 2, 7, 7, 1, 4, 30, 8, 2, 11}}) {
    std::vector<std::int32_t> ids = prompt, expected;
    for (int i = 0; i < 16; ++i) {
      expected.push_back(likeliest(ids));
      ids.push_back(expected.back());
    }
    EXPECT_EQ(train::generate(*engine_, prompt, {.count = 16}), expected);
    const auto stop = std::find(expected.begin(), expected.end(), expected[9]);
    EXPECT_EQ(train::generate(*engine_, prompt, {.count = 16, .stops = {expected[9]}}),
              std::vector<std::int32_t>(expected.begin(), stop));
  }
}

// What a rule lets a token see may depend on what was given, and on tokens that come later.
TEST_P(TrainGenerate, RulesOfAttentionHoldWhileTextIsMade) {
  const std::vector<std::int32_t> prompt = {5, 9, 2, 7, 7, 1, 4, 30, 8, 2, 11};
  const std::vector<std::int32_t> causal = train::generate(*engine_, prompt, {.count = 16});
  for (const char* mask : {"causal or prefix", "causal and (q - k) % 3 != 2"}) {
    fixture_.config.attention.mask = mask;
    start();
    std::vector<std::int32_t> ids = prompt, expected;
    for (int i = 0; i < 16; ++i) {
      expected.push_back(likeliest(ids, prompt.size()));
      ids.push_back(expected.back());
    }
    EXPECT_EQ(train::generate(*engine_, prompt, {.count = 16}), expected) << mask;
    EXPECT_NE(expected, causal) << mask;
  }
}

TEST_P(TrainGenerate, SamplingFollowsSeedTemperatureAndNucleus) {
  const std::vector<std::int32_t> prompt = {3, 4, 5};
  const auto greedy = train::generate(*engine_, prompt, {.count = 20});
  const auto go_on = [&](const model::Drawing& drawing) {
    return train::generate(*engine_, prompt, {.count = 20, .drawing = drawing});
  };
  const auto sampled = go_on({.temperature = 1.0f, .seed = 1});
  EXPECT_EQ(go_on({.temperature = 1.0f, .seed = 1}), sampled);
  EXPECT_NE(go_on({.temperature = 1.0f, .seed = 2}), sampled);
  EXPECT_NE(go_on({.temperature = 1.0f, .seed = 1, .first_sequence = 1}), sampled);
  EXPECT_NE(sampled, greedy);
  // A nucleus of one token, and next to no temperature.
  EXPECT_EQ(go_on({.temperature = 1.0f, .top_p = 1e-6f, .seed = 1}), greedy);
  EXPECT_EQ(go_on({.temperature = 1e-6f, .seed = 1}), greedy);
}

INSTANTIATE_TEST_SUITE_P(, TrainGenerate, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
