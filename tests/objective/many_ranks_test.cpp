#include <gtest/gtest.h>

#include <mutex>

#include "objective/objective_fixture.h"
#include "support/device_tensors.h"
#include "support/thread_ranks.h"

// A step of several processes learns what one process learns, whatever each of them keeps: losses are divided by the
// pairs, or labels, of all of them, and a teacher may be divided as well. One rank has nothing to do.
namespace inlay::testing {
namespace {

using parallel::Mesh;
using parallel::Zero;

struct Step {
  double loss = 0, norm = 0;
  inlay::model::Objective::Metrics metrics;
};

// Documents one by one: those of a step are dealt to ranks in turn.
std::vector<PackedBatch> micro_batches(const ObjectiveFixture& fixture, const std::string& name) {
  std::vector<PackedBatch> batches;
  for (const Document& document : fixture.documents(name)) batches.push_back(pack(std::span(&document, 1)));
  return batches;
}

// Two steps of AdamW: the second one's loss tells whether the first one's update was the same.
Step steps(const ObjectiveFixture& fixture, const std::string& name, const Mesh& mesh, bool on_host) {
  const std::vector<PackedBatch> all = micro_batches(fixture, name);
  const int size = mesh.all->size(), rank = mesh.all->rank();
  std::vector<PackedBatch> mine;
  train::StepShare share{.first_micro_batch = rank};
  for (std::size_t i = 0; i < all.size(); ++i) {
    // The last rank of many has none.
    if (static_cast<int>(i) % std::max(size - 1, 1) == rank) mine.push_back(all[i]);
    share.tokens += all[i].token_count();
    share.valid += all[i].valid_count();
    share.weight += all[i].valid_weight();
  }
  share.passes = (static_cast<std::int64_t>(all.size()) + std::max(size - 1, 1) - 1) / std::max(size - 1, 1);
  train::EngineOptions options{.device = Device::cpu, .compute = DType::f32};
  options.optimizer.eps = 1e-5;
  options.other.on_host = on_host;
  options.mesh = mesh;
  const auto engine = fixture.engine(name, options);
  Step step;
  for (int i = 1; i <= 2; ++i) {
    const train::StepResult result = engine->train_step(mine, i, 1e-3, share);
    step = {result.loss, result.grad_norm, result.metrics};
  }
  return step;
}

TEST(ObjectiveManyRanks, AStepOfManyIsThatOfOne) {
  const ObjectiveFixture fixture("llama_linear_sharded");
  for (const std::string name : {"dpo", "orpo", "simpo_cpo", "dft", "kd_jsd", "kd_kept"}) {
    const Step expected = steps(fixture, name, {}, false);
    for (const Zero zero : {Zero::none, Zero::gradients, Zero::weights}) {
      for (const bool on_host : {false, true}) {
        if (on_host && name != "kd_jsd") continue;
        SCOPED_TRACE(
            fmt::format("{}, ZeRO {}{}", name, static_cast<int>(zero), on_host ? ", teacher on the host" : ""));
        std::mutex mutex;
        run_ranks(3, [&](const std::shared_ptr<parallel::Communicator>& ranks) {
          const Step step = steps(fixture, name, {.all = ranks, .shards = ranks, .zero = zero}, on_host);
          const std::lock_guard lock(mutex);
          EXPECT_NEAR(step.loss, expected.loss, 1e-6 * std::abs(expected.loss));
          EXPECT_NEAR(step.norm, expected.norm, 1e-5 * expected.norm);
          ASSERT_EQ(step.metrics.size(), expected.metrics.size());
          for (std::size_t i = 0; i < step.metrics.size(); ++i) {
            EXPECT_NEAR(step.metrics[i].second, expected.metrics[i].second,
                        1e-5 + 1e-5 * std::abs(expected.metrics[i].second))
                << step.metrics[i].first;
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace inlay::testing
