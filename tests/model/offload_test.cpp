#include <gmock/gmock.h>

#include "support/deep_model.h"
#include "support/device_tensors.h"

// Activations that leave the device between the passes, to the host or to a disk, come back as they were.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
using Gradients = std::map<std::string, std::vector<double>>;

class ModelOffload : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  train::EngineOptions options(const std::string& policy) const {
    return {.device = std::get<0>(GetParam()),
            .compute = std::get<1>(GetParam()),
            .policy = model::ActivationPolicy::parse(policy),
            .optimizer_state = false};
  }

  static Gradients gradients(const DeepModel& model, const train::EngineOptions& options) {
    const auto engine = model.engine(options);
    engine->gradients(model.batches);
    Gradients result = gradients_of(*engine);
    result["loss"] = {engine->decoder().read_loss(engine->exec()).loss};
    return result;
  }
};

const char* policies[] = {"offload_attention",
                          "offload",
                          "offload_half",
                          "3*offload+keep",
                          "4*offload_half+recompute",
                          "3*offload_half+offload_attention",
                          "5*recompute_mlp+offload_half",
                          "offload_mlp",
                          "offload_mlp_half",
                          "offload_both",
                          "offload_both_half",
                          "3*attention+offload_mlp",
                          "2*offload_both_half+offload_mlp",
                          "2*offload_attention+offload_half"};

TEST_P(ModelOffload, GivesTheSameBits) {
  for (const std::int64_t layers : {1, 2, 7, 8}) {
    const DeepModel model(layers);
    const Gradients kept = gradients(model, options("keep"));
    for (const char* policy : policies) {
      EXPECT_EQ(gradients(model, options(policy)), kept) << policy << ", " << layers << " layers";
    }
  }
}

TEST_P(ModelOffload, ADiskGivesThemToo) {
  const DeepModel model;
  const TempFolder disk;
  const Gradients kept = gradients(model, options("keep"));
  for (const char* policy : policies) {
    train::EngineOptions on_disk = options(policy);
    on_disk.spill_folder = disk.path().string();
    EXPECT_EQ(gradients(model, on_disk), kept) << policy;
  }
  EXPECT_EQ(disk.entry_count(), 0u) << "nothing is left behind";
}

// Norms around blocks, windows that take turns, fused tensors, experts: whatever a family has.
TEST_P(ModelOffload, OfEveryFamily) {
  for (const auto& folder : model_fixtures()) {
    const DeepModel model(5, folder.filename().string());
    const Gradients kept = gradients(model, options("keep"));
    for (const char* policy : {"offload", "offload_half", "2*offload_attention+offload_half", "offload_mlp_half",
                               "2*offload_mlp+offload_both"})
      EXPECT_EQ(gradients(model, options(policy)), kept) << folder << " " << policy;
  }
}

// What is computed in tiles leaves as a whole.
TEST_P(ModelOffload, TilesFillWhatLeaves) {
  const DeepModel model(5);
  train::EngineOptions tiled = options("recompute_mlp");
  tiled.mlp_tile = 7;
  const Gradients again = gradients(model, tiled);
  for (const char* policy : {"offload_mlp", "offload_both_half"}) {
    tiled.policy = model::ActivationPolicy::parse(policy);
    EXPECT_EQ(gradients(model, tiled), again) << policy;
  }
}

TEST(ModelOffloadErrors, AFolderThatIsNotThereAndADiskThatIsFull) {
  const DeepModel model(3);
  train::EngineOptions options = {.policy = model::ActivationPolicy::parse("offload"), .optimizer_state = false};
  options.spill_folder = "/nowhere/at/all";
  EXPECT_THAT(user_error_of([&] { model.engine(options); }), HasSubstr("memory.disk: /nowhere/at/all"));
  const TempFolder disk;
  EXPECT_THAT(user_error_of([&] { backend::SpillFile(disk.path(), std::uint64_t{1} << 60); }),
              HasSubstr("the run needs 1073741824.00 GiB there"));
}

TEST(ModelPolicies, ReadBackAndRefuse) {
  for (const char* text : {"keep", "12*recompute+attention", "2*offload_half+3*offload+qkv,attention"}) {
    EXPECT_EQ(model::ActivationPolicy::parse(text).str(), text);
  }
  const auto policy = model::ActivationPolicy::parse("2*offload_half+keep");
  EXPECT_TRUE(policy.of(0).offloads(model::Activation::input));
  EXPECT_EQ(policy.of(1)[model::Activation::input], model::Storage::recompute);
  EXPECT_TRUE(policy.of(2).keeps(model::Activation::gate_up));
  for (const char* text : {"sometimes", "12*recompute", "recompute+keep", "x*keep+keep", "0*keep+keep", "input"}) {
    EXPECT_THAT(user_error_of([&] { model::ActivationPolicy::parse(text); }), HasSubstr("activation policy")) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(, ModelOffload,
                         ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) { return case_name(std::get<0>(info.param), std::get<1>(info.param)); });

}  // namespace
}  // namespace inlay::testing
