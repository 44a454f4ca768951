#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/device_tensors.h"
#include "support/fixtures.h"

// What the configuration asks of the loss reaches it in training, and leaves evaluation alone.
namespace inlay::testing {
namespace {

class TrainLossSettings : public ::testing::TestWithParam<Device> {
 protected:
  std::unique_ptr<train::Engine> engine(const model::LossSettings& loss) const {
    return fixture.engine({.device = GetParam(), .compute = DType::f32, .loss = loss, .logit_rows = 64});
  }

  struct Losses {
    double cross_entropy = 0, smoothed = 0, squared_log_sum = 0;  // means over the labels
  };
  Losses by_logits(train::Engine& engine) const {
    const auto vocab = static_cast<std::size_t>(engine.decoder().config().vocab);
    const std::vector<float> logits = engine.decoder().logits(engine.exec(), batch, batch.valid_rows);
    Losses result;
    for (std::size_t i = 0; i < batch.valid_rows.size(); ++i) {
      const float* row = logits.data() + i * vocab;
      const double most = *std::max_element(row, row + vocab);
      double sum = 0, all = 0;
      for (std::size_t v = 0; v < vocab; ++v) sum += std::exp(row[v] - most), all += row[v];
      const double log_sum = most + std::log(sum);
      const std::int32_t target = batch.targets[static_cast<std::size_t>(batch.valid_rows[i])];
      result.cross_entropy += log_sum - row[target];
      result.smoothed += log_sum - all / static_cast<double>(vocab);
      result.squared_log_sum += log_sum * log_sum;
    }
    const auto count = static_cast<double>(batch.valid_rows.size());
    return {result.cross_entropy / count, result.smoothed / count, result.squared_log_sum / count};
  }

  Fixture fixture{model_fixtures().front()};
  PackedBatch batch = pack(fixture.documents);
};

TEST_P(TrainLossSettings, SmoothingAndZLossAreInTheLossOfAStep) {
  const auto model = engine({.label_smoothing = 0.2, .z_loss = 0.01, .chunk = 5});
  const Losses expected = by_logits(*model);
  const train::StepResult step = model->train_step({batch}, 1, 0.0);
  EXPECT_NEAR(step.z_loss, 0.01 * expected.squared_log_sum, 1e-5);
  EXPECT_NEAR(step.loss, 0.8 * expected.cross_entropy + 0.2 * expected.smoothed + step.z_loss, 1e-5);
  const double sum = model->evaluate(batch).loss;
  EXPECT_NEAR(sum / static_cast<double>(batch.valid_rows.size()), expected.cross_entropy, 1e-5);
}

// The gradient is that of this loss: along itself, the loss falls by its square.
TEST_P(TrainLossSettings, GradientsAreThoseOfTheLoss) {
  const auto model = engine({.label_smoothing = 0.2, .z_loss = 0.01});
  const auto loss_at = [&](double shift, std::vector<double>& gradient) {
    weights::Parameter& norm = model->decoder().parameters().final_norm;
    std::vector<float> value(static_cast<std::size_t>(norm.size()));
    model->exec().download(value.data(), norm.value);
    const std::vector<float> before = value;
    for (std::size_t i = 0; i < gradient.size(); ++i) value[i] += static_cast<float>(shift * gradient[i]);
    model->exec().upload(norm.value, value.data());
    model->gradients({batch});
    const double loss = model->decoder().read_loss(model->exec()).loss;
    if (gradient.empty()) {
      std::vector<float> own(value.size());
      model->exec().download(own.data(), norm.grad);
      gradient.assign(own.begin(), own.end());
    }
    model->exec().upload(norm.value, before.data());
    return loss;
  };
  std::vector<double> gradient;
  loss_at(0, gradient);
  double square = 0;
  for (const double g : gradient) square += g * g;
  ASSERT_GT(square, 0);
  const double step = 1e-2 / std::sqrt(square);
  const double slope = (loss_at(step, gradient) - loss_at(-step, gradient)) / (2 * step);
  EXPECT_NEAR(slope, square, 1e-2 * square);
}

INSTANTIATE_TEST_SUITE_P(Devices, TrainLossSettings, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
