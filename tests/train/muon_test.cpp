#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/device_tensors.h"
#include "support/fixtures.h"
#include "support/paths.h"

// Muon over the matrices of the layers, AdamW over the rest, in a model: the losses of ten steps, against fp64.
namespace inlay::testing {
namespace {

using train::MuonScale;
using train::OptimizerKind;

class TrainMuon : public ::testing::TestWithParam<Device> {};

TEST_P(TrainMuon, TenStepsTrackPyTorch) {
  std::ifstream file(source_folder() / "tests/golden/optimizers.json");
  const nlohmann::json muon = nlohmann::json::parse(file).at("muon");
  for (const auto& run : muon.at("models")) {
    SCOPED_TRACE(run.at("model").get<std::string>() + ", " + run.at("scale").get<std::string>());
    const Fixture fixture(source_folder() / "tests/golden/models" / run.at("model").get<std::string>());
    const auto& adamw = run.at("adamw");
    const auto engine =
        fixture.engine({.device = GetParam(),
                        .compute = DType::f32,
                        .optimizer = {.kind = OptimizerKind::muon,
                                      .muon_momentum = muon.at("momentum"),
                                      .muon_scale = run.at("scale") == "shape" ? MuonScale::shape : MuonScale::adamw,
                                      .beta1 = adamw.at("betas")[0],
                                      .beta2 = adamw.at("betas")[1],
                                      .eps = adamw.at("eps"),
                                      .weight_decay = muon.at("weight_decay"),
                                      .decay_vectors = true}});
    const std::vector<double> truth = run.at("truth"), theirs = run.at("torch");
    double allowed = 0;
    for (std::size_t i = 0; i < truth.size(); ++i) allowed = std::max(allowed, std::abs(theirs[i] - truth[i]));
    const std::vector<PackedBatch> batches = {pack(fixture.documents)};
    for (std::size_t step = 0; step < truth.size(); ++step) {
      const double loss = engine->train_step(batches, static_cast<std::int64_t>(step) + 1, run.at("lr")).loss;
      EXPECT_LE(std::abs(loss - truth[step]), 2 * allowed + 1e-5 * truth[step]) << "step " << step;
    }
  }
}

// Half of AdamW's moments for the matrices; the rest has both.
TEST_P(TrainMuon, MatricesHaveOneMoment) {
  const Fixture fixture(source_folder() / "tests/golden/models/llama_llama3_tied");
  const auto engine =
      fixture.engine({.device = GetParam(), .compute = DType::f32, .optimizer = {.kind = OptimizerKind::muon}});
  std::map<std::string, int> moments;
  engine->optimizer().for_each_state(engine->exec(), true, [&](const train::StateTensor& state) {
    const std::string suffix = state.name.substr(state.name.rfind('.'));
    if (suffix == ".m" || suffix == ".v") ++moments[state.name.substr(0, state.name.rfind('.'))];
  });
  EXPECT_EQ(moments.at("layers.0.attention.qkv"), 1);
  EXPECT_EQ(moments.at("layers.1.mlp.down"), 1);
  EXPECT_EQ(moments.at("embedding"), 2);
  EXPECT_EQ(moments.at("layers.0.attention.norm"), 2);
}

INSTANTIATE_TEST_SUITE_P(, TrainMuon, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
