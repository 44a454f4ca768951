#include "train/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/presets.h"
#include "support/files.h"
#include "support/imaginary_model.h"
#include "train/mesh.h"

// What processes exchange, and how much of it a step waits for: against sums made by hand.
namespace inlay::testing {
namespace {

using backend::CostScope;
using backend::Exec;
using backend::StepPart;
using backend::Work;
using parallel::Zero;
using ::testing::HasSubstr;
using train::NetworkRates;
using train::TeamShape;

TEST(TrainNetwork, LinksHaveNames) {
  const TeamShape one{.processes = 8}, eight{.processes = 64, .nodes = 8};
  EXPECT_EQ(train::network_rates("", one).within, 360e9);
  EXPECT_EQ(train::network_rates("pcie", one).within, 28e9);
  EXPECT_EQ(train::network_rates("25", one).within, 25e9);
  EXPECT_EQ(train::network_rates("", eight).between, 8 * 46e9);
  EXPECT_EQ(train::network_rates("eth100", eight).between, 11e9) << "what all of a node share";
  EXPECT_EQ(train::network_rates("25", eight).between, 8 * 25e9);
  const NetworkRates both = train::network_rates("pcie,eth100", eight);
  EXPECT_EQ(both.within, 28e9);
  EXPECT_EQ(both.between, 11e9);
  EXPECT_THAT(both.source, HasSubstr("PCIe 5"));
  EXPECT_THAT(both.source, HasSubstr("Ethernet"));
  for (const char* wrong : {"infiniband", "0", "-3", "nvlink,,", "12GB"}) {
    EXPECT_THAT(user_error_of([&] { train::network_rates(wrong, one); }), HasSubstr("--link: expected nvlink, pcie"));
  }
  EXPECT_THAT(user_error_of([&] { train::network_rates("ib400", one); }), HasSubstr("all 8 processes are on one"));
  for (const char* twice : {"pcie,nvlink", "25,eth100", "25,30"}) {
    EXPECT_THAT(user_error_of([&] { train::network_rates(twice, eight); }), HasSubstr("a second link of its kind"));
  }
}

// What was measured counts for links of its kind alone, and only where the user names none.
TEST(TrainNetwork, MeasuredRatesCountForTheirKindOfLink) {
  const TeamShape one{.processes = 8}, eight{.processes = 64, .nodes = 8};
  const std::vector<train::MeasuredRing> host = {{5e9, 2, 1, 1 << 26, 10}};
  EXPECT_EQ(train::network_rates("", one, host).within, 5e9);
  EXPECT_THAT(train::network_rates("", one, host).source,
              HasSubstr("5 GB/s per process, measured with 2 processes on one node and 64.0 MiB, within a node"));
  EXPECT_EQ(train::network_rates("pcie", one, host).within, 28e9) << "as asked for";
  const NetworkRates far = train::network_rates("", eight, host);
  EXPECT_EQ(far.within, 5e9);
  EXPECT_EQ(far.between, 8 * 46e9) << "of which one host says nothing";
  EXPECT_THAT(far.source, HasSubstr("InfiniBand NDR (46 of 50 GB/s per GPU) between nodes"));

  const std::vector<train::MeasuredRing> all = {
      {5e9, 2, 1, 1 << 26, 10}, {4e9, 8, 1, 1 << 26, 10}, {3e9, 16, 2, 1 << 26, 10}, {1e9, 2, 2, 1 << 26, 10}};
  EXPECT_EQ(train::network_rates("", one, all).within, 4e9) << "of as many processes";
  EXPECT_EQ(train::network_rates("", eight, all).between, 3e9) << "of nodes with as many processes";
  EXPECT_THAT(train::network_rates("", eight, all).source, HasSubstr("measured with 16 processes on 2 nodes"));
  EXPECT_EQ(train::network_rates("eth100", eight, all).between, 11e9);
  EXPECT_EQ(train::network_rates("eth100", eight, all).within, 4e9) << "of which nothing was said";
  EXPECT_EQ(train::network_rates("25", eight, all).between, 8 * 25e9);
  EXPECT_EQ(train::network_rates("", {.processes = 16, .nodes = 4}, all).between, 4 * 46e9)
      << "four on a node may have other links than eight or one";
}

TEST(TrainNetwork, ABetterMeasurementIsKept) {
  const TempFolder folder;
  const Setting cache("XDG_CACHE_HOME", folder.path().string());
  const auto rates = [] {
    std::vector<double> result;
    for (const train::MeasuredRing& ring : train::kept_rings(Device::cpu)) result.push_back(ring.rate);
    return result;
  };
  EXPECT_EQ(rates(), std::vector<double>());
  EXPECT_TRUE(train::keep_ring(Device::cpu, {5e9, 2, 1, 1 << 26, 10}));
  EXPECT_FALSE(train::keep_ring(Device::cpu, {1e9, 2, 1, 1 << 20, 10})) << "a small tensor";
  EXPECT_FALSE(train::keep_ring(Device::cpu, {1e9, 2, 1, 1 << 26, 1})) << "a quick look";
  EXPECT_EQ(rates(), std::vector<double>{5e9});
  EXPECT_TRUE(train::keep_ring(Device::cpu, {6e9, 2, 1, 1 << 26, 10})) << "the same again";
  EXPECT_TRUE(train::keep_ring(Device::cpu, {3e9, 4, 2, 1 << 20, 1})) << "something else";
  EXPECT_EQ(rates(), (std::vector<double>{6e9, 3e9}));
  const std::filesystem::path file = *std::filesystem::directory_iterator(folder / "inlay");
  const std::string whole = read_text(file);
  const auto with = [&](std::string_view from, std::string_view to) {
    return std::string(whole).replace(whole.find(from), from.size(), to);
  };
  std::ofstream(file) << with("\"nodes\": 2", "\"nodes\": 3");
  EXPECT_EQ(rates(), std::vector<double>{6e9}) << "four processes on three nodes";
  std::ofstream(file) << with("\"nodes\": 2", "\"nodes\": 2e300");
  EXPECT_EQ(rates(), std::vector<double>{6e9}) << "more than a number of nodes can be";
  for (const std::string& text :
       {std::string("[]"), whole.substr(0, whole.size() / 2), with("\"version\": 1", "\"version\": 2")}) {
    std::ofstream(file) << text;
    EXPECT_EQ(rates(), std::vector<double>()) << text;
  }
}

// A unit of each kind of work per second, and no delays.
train::Ceilings unit_ceilings() {
  return {.matmul = 1, .fp8 = 1, .attention = 1, .memory = 1, .link = 1, .host = 1, .source = {}};
}
NetworkRates rates(double within, double between) { return {.within = within, .between = between, .source = {}}; }

// A plan of so much work, and so many bytes sent, in each part of a step.
struct Parts {
  double forward = 0, backward = 0, sums = 0, optimizer = 0;
};
train::MemoryPlan plan_of(const Parts& compute, const Parts& sent, double far = 0) {
  Exec exec = Exec::planner(Device::cpu);
  const auto count = [&](StepPart part, double bytes, double network) {
    const CostScope scope(exec, part);
    exec.count(&Work::bytes, bytes);
    exec.count(&Work::network, network);
    exec.count(&Work::network_far, far * network);
  };
  count(StepPart::forward, compute.forward, sent.forward);
  count(StepPart::backward, compute.backward, sent.backward);
  count(StepPart::sums, compute.sums, sent.sums);
  count(StepPart::optimizer, compute.optimizer, sent.optimizer);
  return {.cost = exec.cost(), .batch = {.tokens = 100, .squares = 0}};
}

TEST(TrainNetwork, OfWhatHidesOneLayerIsLeft) {
  const TeamShape team{.processes = 4};
  const auto step = [&](const Parts& sent, std::int64_t micro_batches = 1) {
    return train::estimate_team_step(plan_of({.forward = 10, .backward = 20, .optimizer = 3}, sent), micro_batches,
                                     {10, 0.1}, team, unit_ceilings(), rates(1, 1));
  };
  EXPECT_DOUBLE_EQ(step({}).step_seconds, 33);
  EXPECT_DOUBLE_EQ(step({}).tokens_per_second, 4 * 100 / 33.0);
  EXPECT_DOUBLE_EQ(step({.forward = 5}).step_seconds, 33 + 0.5) << "the first layer's weights";
  EXPECT_DOUBLE_EQ(step({.forward = 15}).step_seconds, 33 + 5 + 1) << "and the last one's kernels";
  EXPECT_DOUBLE_EQ(step({.sums = 8}).step_seconds, 33 + 0.8);
  EXPECT_DOUBLE_EQ(step({.optimizer = 4}).step_seconds, 33 + 0.4) << "behind the next forward pass";
  EXPECT_DOUBLE_EQ(step({.forward = 5, .optimizer = 7}).step_seconds, 33 + 2 + 1);
  // What comes once per step comes once.
  const train::TeamEstimate three = step({.forward = 5, .backward = 10, .sums = 7, .optimizer = 4}, 3);
  EXPECT_DOUBLE_EQ(three.compute_seconds, 93);
  EXPECT_DOUBLE_EQ(three.network_seconds, 3 * 15 + 7 + 4);
  EXPECT_DOUBLE_EQ(three.step_seconds, 93 + 2 * (0.5 + 1) + 0.9 + 1.7);
  EXPECT_DOUBLE_EQ(three.exposed_seconds(), three.step_seconds - 93);
  EXPECT_DOUBLE_EQ(three.sent_bytes, 56);
  EXPECT_DOUBLE_EQ(three.layer_bytes, 2.6);
}

TEST(TrainNetwork, TheSlowestLinkOfARingCounts) {
  const auto seconds = [](const TeamShape& team, const NetworkRates& network, double far) {
    return train::estimate_team_step(plan_of({}, {.sums = 120}, far), 1, {10, 0.1}, team, unit_ceilings(), network)
        .network_seconds;
  };
  const TeamShape one{.processes = 4}, two{.processes = 8, .nodes = 2};
  EXPECT_DOUBLE_EQ(seconds(one, rates(10, 4), 0), 12);
  EXPECT_DOUBLE_EQ(seconds(two, rates(10, 4), 1), 30) << "a ring leaves a node once";
  EXPECT_DOUBLE_EQ(seconds(two, rates(10, 40), 1), 12);
  // Four rings of one process of each node share what leaves it.
  const TeamShape nodes{.processes = 8, .nodes = 2, .shards_in_node = true};
  EXPECT_DOUBLE_EQ(seconds(nodes, rates(10, 4), 1), 120);
  EXPECT_DOUBLE_EQ(seconds(nodes, rates(10, 4), 0), 12);
}

TEST(TrainNetwork, EveryProcessOfARingDelaysIt) {
  Exec exec = Exec::planner(Device::cpu);
  {
    const CostScope scope(exec, StepPart::sums);
    exec.count(&Work::collectives, 3);
    exec.count(&Work::collectives_far, 2);
  }
  const train::MemoryPlan plan = {.cost = exec.cost(), .batch = {.tokens = 1, .squares = 0}};
  NetworkRates network = rates(1, 1);
  network.start = 100, network.hop_within = 1, network.hop_between = 10;
  const auto seconds = [&](bool in_node) {
    const TeamShape team{.processes = 8, .nodes = 2, .shards_in_node = in_node};
    return train::estimate_team_step(plan, 1, {10, 0.1}, team, unit_ceilings(), network).network_seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(false), (100 + 3) + 2 * (100 + 2 * (3 + 10)));
  EXPECT_DOUBLE_EQ(seconds(true), (100 + 3) + 2 * (100 + 2 * 10));
}

// Weights in bf16 and gradients in fp32, of which a process sends all but its own share.
TEST(TrainNetwork, StagesSendWhatTheirNamesPromise) {
  const model::ModelConfig config = imaginary_model(2);
  train::EngineOptions options = {.device = Device::cuda, .compute = DType::bf16};
  options.max_tokens = options.max_document = 256;
  const auto parameters = static_cast<double>(config.parameter_count());
  const auto sent = [&](Zero zero, const TeamShape& team) {
    options::TrainOptions shape;
    if (team.shards_in_node) shape.parallel.shard = parallel::ShardGroup::node;
    options.mesh = train::planned_mesh(shape, team.processes, team.per_node());
    options.mesh.zero = zero;
    return Work(train::Engine::plan(config, options).cost.total());
  };
  const TeamShape four{.processes = 4};
  const double round = 3.0 / 4;
  const auto expect = [&](Zero zero, double bytes) {
    // Vectors and sums of squares are few.
    EXPECT_NEAR(sent(zero, four).network / (round * parameters), bytes, 0.01 * bytes) << static_cast<int>(zero);
    EXPECT_EQ(sent(zero, four).network_far, 0);
  };
  expect(Zero::none, 2 * 4);
  expect(Zero::state, 4 + 2);
  expect(Zero::gradients, 4 + 2);
  // Shards of a node, summed over nodes: of the gradients a process sends its share's sum to other nodes.
  const TeamShape nodes{.processes = 8, .nodes = 2, .shards_in_node = true};
  const Work far = sent(Zero::state, nodes);
  EXPECT_NEAR(far.network_far, 2 * 0.5 * 4 * parameters / 4, 0.01 * parameters);
  EXPECT_NEAR(far.network - far.network_far, round * 6 * parameters, 0.01 * 6 * parameters);
  const Work all = sent(Zero::state, {.processes = 8, .nodes = 2});
  EXPECT_EQ(all.network, all.network_far);
}

// With what a pass begins or ends, nothing runs beside: the embedding, and the layer next to it.
TEST(TrainNetwork, AnEdgeIsTheEmbeddingAndALayer) {
  const model::ModelConfig config = model::shape_or_config("llama-8b");
  const double embedding = 128256.0 * 4096, all = 8030261248.0, layer = (all - 2 * embedding) / 32;
  const train::Edge edge = train::edge_of(config);
  EXPECT_EQ(edge.layers, 32);
  EXPECT_DOUBLE_EQ(edge.share, (embedding + layer) / all);
}

}  // namespace
}  // namespace inlay::testing
