#include <gtest/gtest.h>

#include "support/device_tensors.h"
#include "support/fixtures.h"

// Inlay against transformers: the same weights and documents, the same logits, loss, gradients and ten steps of AdamW.
namespace inlay::testing {
namespace {

class ModelParity : public ::testing::TestWithParam<FixtureCase> {
 protected:
  // PyTorch's own error in bf16, by which ours is judged; absent in fixtures that only know fp32.
  static double bf16_allowance(const Fixture& fixture, const std::string& what) {
    const auto& error = fixture.expected.at("bf16");
    // PyTorch's error of the loss may be small by luck: what counts is how large such an error is in general. That of a
    // short document's logits may be small or large by luck.
    double theirs = error.at(what);
    if (what == "loss") theirs = std::max(theirs, error.at("loss_typical").get<double>());
    if (what.starts_with("logits.")) theirs = std::max(theirs, error.at("logits").get<double>());
    return 2.0 * theirs + 1e-4;
  }

  static std::vector<double> logits(train::Engine& engine, const Document& document) {
    const PackedBatch batch = pack(std::span(&document, 1));
    std::vector<std::int32_t> rows(document.input_ids.size());
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
    const std::vector<float> values = engine.decoder().logits(engine.exec(), batch, rows);
    return {values.begin(), values.end()};
  }

  static void check(const Fixture& fixture, Device device, DType compute) {
    const bool half = compute == DType::bf16;
    const auto allowed = [&](const std::string& what) { return half ? bf16_allowance(fixture, what) : 1e-5; };
    const auto engine =
        fixture.engine({.device = device, .compute = compute, .optimizer_state = false, .logit_rows = 64});
    for (std::size_t d = 0; d < fixture.documents.size(); ++d) {
      const std::string key = "logits." + std::to_string(d);
      EXPECT_LE(relative_error(logits(*engine, fixture.documents[d]), fixture.tensor(key)), allowed(key)) << key;
    }
    engine->gradients({pack(fixture.documents)});
    const double loss = engine->decoder().read_loss(engine->exec()).loss, expected = fixture.expected.at("loss");
    EXPECT_LE(std::abs(loss - expected) / expected, allowed("loss"));
    for (const auto& [key, gradient] : gradients_of(*engine)) {
      EXPECT_LE(relative_error(gradient, fixture.tensor(key)), allowed(key)) << key;
    }
  }
};

TEST_P(ModelParity, LogitsLossAndGradientsInFp32) { check(Fixture(GetParam().folder), GetParam().device, DType::f32); }

TEST_P(ModelParity, LogitsLossAndGradientsInBf16) {
  const Fixture fixture(GetParam().folder);
  if (!fixture.expected.contains("bf16")) GTEST_SKIP() << "the fixture does not say how far PyTorch's bf16 is off";
  check(fixture, GetParam().device, DType::bf16);
}

TEST_P(ModelParity, TenAdamWStepsTrackPyTorch) {
  const Fixture fixture(GetParam().folder);
  const auto& adamw = fixture.expected.at("adamw");
  const auto engine = fixture.engine({.device = GetParam().device,
                                      .compute = DType::f32,
                                      .optimizer = {.beta1 = adamw.at("betas")[0],
                                                    .beta2 = adamw.at("betas")[1],
                                                    .eps = adamw.at("eps"),
                                                    .weight_decay = adamw.at("weight_decay"),
                                                    .decay_vectors = true}});
  const std::vector<PackedBatch> batches = {pack(fixture.documents)};
  const std::vector<double> losses = adamw.at("losses");
  for (std::size_t step = 0; step < losses.size(); ++step) {
    const double loss = engine->train_step(batches, static_cast<std::int64_t>(step) + 1, adamw.at("lr")).loss;
    EXPECT_LE(std::abs(loss - losses[step]) / losses[step], 1e-5) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(, ModelParity, ::testing::ValuesIn(fixture_cases()), fixture_case_name);

}  // namespace
}  // namespace inlay::testing
