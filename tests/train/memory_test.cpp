#include <gmock/gmock.h>

#include "model/presets.h"
#include "support/imaginary_model.h"
#include "train/memory.h"
#include "train/step_time.h"

// The choice of what stays on the device, without any device: plans are made for a GPU that need not be there.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using train::MemoryBudget;
using train::MemoryChoice;
using train::MemoryDemands;

struct Choosing {
  train::EngineOptions options(std::int64_t tokens = 16384) const {
    train::EngineOptions o = {.device = Device::cuda, .compute = DType::bf16};
    o.max_tokens = o.max_document = tokens;
    return o;
  }

  std::size_t peak(const std::string& policy, std::int64_t host_layers = 0, std::int64_t tile = 0) const {
    train::EngineOptions o = options();
    o.policy = model::ActivationPolicy::parse(policy);
    o.host_layers = host_layers;
    o.mlp_tile = tile;
    return train::Engine::plan(config, o).device_peak;
  }

  model::ModelConfig config = imaginary_model(8);
  MemoryBudget plenty{.device = std::size_t{1} << 40, .host = std::size_t{1} << 40};
};

TEST(TrainMemory, EveryRungOfTheLadderTakesLessOfTheDevice) {
  const Choosing c;
  std::size_t before = Arena::unlimited;
  for (const std::string_view rung : model::ActivationPolicy::ladder()) {
    // Half of the inputs take no less of the device, but of the host.
    if (rung == "offload_half") continue;
    const std::size_t now = c.peak(std::string(rung));
    EXPECT_LT(now, before) << rung;
    before = now;
  }
}

TEST(TrainMemory, TakesTheFirstThatFitsAndClimbsBackAsFarAsItCan) {
  const Choosing c;
  train::EngineOptions o = c.options();
  MemoryChoice choice = train::choose_memory(c.config, o, {}, c.plenty);
  EXPECT_TRUE(choice.fits);
  EXPECT_EQ(o.policy.str(), "keep");

  // Between two rungs some layers take the better one, and one layer more would not fit.
  const std::size_t between = (c.peak("recompute_mlp") + c.peak("attention")) / 2;
  o = c.options();
  choice = train::choose_memory(c.config, o, {}, {.device = between, .host = c.plenty.host});
  EXPECT_TRUE(choice.fits);
  EXPECT_LE(choice.plan.device_peak, between);
  int n = 0;
  ASSERT_EQ(std::sscanf(o.policy.str().c_str(), "%d*attention+recompute_mlp", &n), 1) << o.policy.str();
  if (n > 1) {
    EXPECT_GT(c.peak(fmt::format("{}*attention+recompute_mlp", n - 1)), between);
  }
  EXPECT_THAT(choice.reason, HasSubstr("recompute_mlp does not fit"));
}

// A wide model's gate and up wait on the host where that is faster than to compute them again: where there is room for
// them, where the link has time, and where nobody has decided.
TEST(TrainMemory, GateAndUpLeaveWhereTheLinkHasTimeForThem) {
  Choosing c;
  c.config = model::shape_or_config("llama-8b");
  c.config.layers.resize(6);
  const auto options = [&] {
    train::EngineOptions o = c.options(8192);
    o.deterministic = false;
    return o;
  };
  const auto peak = [&](const char* policy) {
    train::EngineOptions o = options();
    o.policy = model::ActivationPolicy::parse(policy);
    return train::Engine::plan(c.config, o).device_peak;
  };
  // Two slabs of gate and up take more than computing them again, and less than keeping six.
  ASSERT_LT(peak("offload_mlp_half"), peak("recompute_norms"));
  const MemoryBudget budget = {.device = peak("offload_mlp_half"), .host = c.plenty.host};
  train::EngineOptions o = options();
  const MemoryChoice moved = train::choose_memory(c.config, o, {}, budget);
  ASSERT_TRUE(moved.fits);
  EXPECT_THAT(o.policy.str(), HasSubstr("offload_mlp"));
  EXPECT_THAT(moved.reason, HasSubstr("gate and up wait on the host"));
  EXPECT_LE(moved.plan.device_peak, budget.device);
  EXPECT_GT(moved.plan.host_peak, 0u);

  o = options();
  const MemoryChoice again = train::choose_memory(c.config, o, {}, {.device = budget.device, .host = 0});
  ASSERT_TRUE(again.fits);
  EXPECT_THAT(o.policy.str(), Not(HasSubstr("offload")));
  const auto seconds = [](const MemoryChoice& choice) {
    return train::estimate_step(choice.plan, 1, train::h200_ceilings()).micro_batch_seconds;
  };
  EXPECT_LT(seconds(moved), 0.98 * seconds(again));

  o = options();
  const auto asked = model::ActivationPolicy::parse("recompute_mlp");
  EXPECT_TRUE(train::choose_memory(c.config, o, {.policy = asked}, budget).fits);
  EXPECT_EQ(o.policy.str(), "recompute_mlp");

  // Of a narrow model they are soon computed again.
  c.config.hidden = 512;
  c.config.heads = 4, c.config.kv_heads = 1;
  o = options();
  ASSERT_TRUE(train::choose_memory(c.config, o, {}, {.device = peak("offload_mlp_half"), .host = c.plenty.host}).fits);
  EXPECT_THAT(o.policy.str(), Not(HasSubstr("offload")));
}

TEST(TrainMemory, LayersGoToTheHostBeforeItGivesUp) {
  const Choosing c;
  train::EngineOptions o = c.options(256);
  // Less than the weights and their state take.
  const std::size_t tight = train::Engine::plan(c.config, o).device_peak / 2;
  MemoryChoice choice = train::choose_memory(c.config, o, {}, {.device = tight, .host = c.plenty.host});
  EXPECT_TRUE(choice.fits) << choice.reason;
  EXPECT_GT(o.host_layers, 0);
  EXPECT_LE(choice.plan.device_peak, tight);

  o = c.options(256);
  choice = train::choose_memory(c.config, o, {}, {.device = tight, .host = 0});
  EXPECT_FALSE(choice.fits);
  EXPECT_THAT(choice.reason, HasSubstr("of host memory, but only"));
  EXPECT_THAT(choice.reason, HasSubstr("memory.disk"));
}

TEST(TrainMemory, FewerRowsOfLogitsComeBeforeLayersOnTheHost) {
  Choosing c;
  c.config.vocab = 200000;
  const auto options = [&] {
    train::EngineOptions o = c.options();
    o.deterministic = false;  // which would take more in attention's backward pass than the logits do
    return o;
  };
  train::EngineOptions o = options();
  o.policy = model::ActivationPolicy::parse("offload");
  o.mlp_tile = 512;
  const auto peak_with = [&](std::int64_t chunk) {
    o.loss.chunk = chunk;
    return train::Engine::plan(c.config, o).device_peak;
  };
  const std::size_t too_much = peak_with(1024);
  ASSERT_LT(peak_with(256), too_much);

  const MemoryBudget budget = {.device = too_much - 1, .host = c.plenty.host};
  o = options();
  MemoryChoice choice = train::choose_memory(c.config, o, {}, budget);
  EXPECT_TRUE(choice.fits) << choice.reason;
  EXPECT_EQ(o.loss.chunk, 256);
  EXPECT_EQ(o.host_layers, 0);
  EXPECT_LE(choice.plan.device_peak, budget.device);
  EXPECT_THAT(choice.reason, HasSubstr("few rows of logits"));

  // Whoever names a chunk gets it.
  o = options();
  choice = train::choose_memory(c.config, o, {.loss_chunk = 2048}, budget);
  EXPECT_EQ(o.loss.chunk, 2048);
  EXPECT_GT(o.host_layers, 0);
}

TEST(TrainMemory, ADiskTakesWhatTheHostCannotHold) {
  const Choosing c;
  const std::size_t tight = c.peak("offload", 0, 512);
  train::EngineOptions o = c.options();
  const MemoryBudget no_disk = {.device = tight, .host = std::size_t{40} << 20};
  EXPECT_FALSE(train::choose_memory(c.config, o, {}, no_disk).fits);
  // The two pieces of pinned memory on the way to the disk and back still have to fit.
  o = c.options();
  const MemoryChoice choice =
      train::choose_memory(c.config, o, {}, {.device = tight, .host = std::size_t{70} << 20, .disk = "/somewhere"});
  EXPECT_TRUE(choice.fits) << choice.reason;
  EXPECT_EQ(o.spill_folder, "/somewhere");
  EXPECT_GT(choice.plan.disk_bytes, 0u);
  // Also where the user has chosen what is taken off the device.
  o = c.options();
  const MemoryDemands demands = {.policy = model::ActivationPolicy::parse("offload")};
  EXPECT_FALSE(train::choose_memory(c.config, o, demands, no_disk).fits);
  o = c.options();
  EXPECT_TRUE(
      train::choose_memory(c.config, o, demands, {.device = tight, .host = std::size_t{70} << 20, .disk = "/somewhere"})
          .fits);
  EXPECT_EQ(o.spill_folder, "/somewhere");
}

TEST(TrainMemory, WhatTheUserDecidedStays) {
  const Choosing c;
  train::EngineOptions o = c.options();
  const MemoryDemands demands = {.policy = model::ActivationPolicy::parse("qkv"), .mlp_tile = 77, .host_layers = 2};
  EXPECT_TRUE(train::choose_memory(c.config, o, demands, c.plenty).fits);
  EXPECT_EQ(o.policy.str(), "qkv");
  EXPECT_EQ(o.mlp_tile, 77);
  EXPECT_EQ(o.host_layers, 2);
  const MemoryChoice choice = train::choose_memory(c.config, o, demands, {.device = 1000, .host = 1000});
  EXPECT_FALSE(choice.fits);
  EXPECT_THAT(choice.reason, HasSubstr("set activation_policy, mlp_tile, loss.chunk and memory.host_layers to auto"));
}

TEST(TrainMemory, TheLongestContextFitsAndNotMuchMoreDoes) {
  const Choosing c;
  const MemoryBudget budget = {.device = std::size_t{2} << 30, .host = std::size_t{3} << 29};
  const std::int64_t longest = train::longest_context(c.config, c.options(), {}, budget, 1 << 22);
  ASSERT_GT(longest, 0);
  train::EngineOptions o = c.options(longest);
  EXPECT_TRUE(train::choose_memory(c.config, o, {}, budget).fits);
  o = c.options(longest + 512);
  EXPECT_FALSE(train::choose_memory(c.config, o, {}, budget).fits);
}

TEST(TrainMemory, TheCpuHasOneMemory) {
  const Choosing c;
  train::EngineOptions o = c.options();
  o.device = Device::cpu;
  const std::size_t recompute = [&] {
    train::EngineOptions p = o;
    p.policy = model::ActivationPolicy::parse("recompute");
    return train::Engine::plan(c.config, p).device_peak;
  }();
  EXPECT_TRUE(train::choose_memory(c.config, o, {}, {.device = recompute, .host = 0}).fits);
  EXPECT_FALSE(o.policy.offloads());
}

// What is said to fit is planned so, and nothing much longer is.
TEST(TrainMemory, TheLongestContextIsTheLongestThatIsPlanned) {
  const Choosing c;
  const std::size_t states = c.peak("offload", 8, 512), whole = c.peak("offload", 0, 512);
  for (const std::size_t device : {states + (std::size_t{8} << 20), (states + whole) / 2, whole + (whole >> 3)}) {
    for (const std::size_t host : {std::size_t{0}, std::size_t{48} << 20}) {
      for (const char* disk : {"", "/somewhere"}) {
        const MemoryBudget budget = {.device = device, .host = host, .disk = disk};
        SCOPED_TRACE(fmt::format("{} and {}, disk '{}'", format_bytes(device), format_bytes(host), disk));
        const std::int64_t longest = train::longest_context(c.config, c.options(), {}, budget, 1 << 16);
        const auto fits = [&](std::int64_t tokens) {
          train::EngineOptions o = c.options(tokens);
          return train::choose_memory(c.config, o, {}, budget).fits;
        };
        if (longest > 0) {
          EXPECT_TRUE(fits(longest)) << longest;
        }
        if (longest < 1 << 16) {
          EXPECT_FALSE(fits(longest + 512)) << longest;
        }
      }
    }
  }
}

}  // namespace
}  // namespace inlay::testing
