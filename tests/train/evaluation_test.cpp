#include "train/evaluation.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <numeric>

#include "core/interrupt.h"
#include "support/device_tensors.h"
#include "support/fixtures.h"
#include "support/thread_ranks.h"

// Losses position by position, and what is decided by them.
namespace inlay::testing {
namespace {

class TrainEvaluation : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  // Logits are rounded to the compute dtype before the loss is made of them. A loss is a difference of two of them,
  // each off by half a unit in the last place: at most 2^-8 of its magnitude in bf16.
  double tolerance(double largest_logit) const { return dtype() == DType::bf16 ? 2 * 0x1p-8 * largest_logit : 1e-5; }

  std::unique_ptr<train::Engine> engine(const Fixture& fixture) const {
    return fixture.engine(
        {.device = device(), .compute = dtype(), .training = false, .logit_rows = 64, .row_losses = true});
  }

  // -log p of every target by the model's own logits, in double, and the largest magnitude among those.
  struct Reference {
    std::vector<double> losses;
    double largest_logit = 0;
  };
  static Reference reference(train::Engine& engine, const PackedBatch& batch) {
    const auto vocab = static_cast<std::size_t>(engine.decoder().config().vocab);
    std::vector<double> losses(batch.tokens.size());
    const std::vector<float> logits = engine.decoder().logits(engine.exec(), batch, batch.valid_rows);
    for (std::size_t i = 0; i < batch.valid_rows.size(); ++i) {
      const float* row = logits.data() + i * vocab;
      const double most = *std::max_element(row, row + vocab);
      double sum = 0;
      for (std::size_t v = 0; v < vocab; ++v) sum += std::exp(row[v] - most);
      const auto position = static_cast<std::size_t>(batch.valid_rows[i]);
      losses[position] = most + std::log(sum) - row[batch.targets[position]];
    }
    double largest = 0;
    for (const float logit : logits) largest = std::max(largest, static_cast<double>(std::fabs(logit)));
    return {losses, largest};
  }
};

TEST_P(TrainEvaluation, RowLossesAreThoseOfTheLogits) {
  for (const auto& folder : model_fixtures()) {
    const Fixture fixture(folder);
    const auto model = engine(fixture);
    const PackedBatch batch = pack(fixture.documents);
    const std::vector<float> losses = model->row_losses(batch);
    const auto [expected, largest] = reference(*model, batch);
    ASSERT_EQ(losses.size(), expected.size());
    for (std::size_t i = 0; i < losses.size(); ++i) {
      if (batch.targets[i] == ignore_label) {
        EXPECT_EQ(losses[i], 0) << folder << " " << i;
      } else {
        EXPECT_NEAR(losses[i], expected[i], tolerance(largest)) << folder << " " << i;
      }
    }
    // The same losses as evaluate() sums, in fp32 there.
    const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
    EXPECT_NEAR(model->evaluate(batch).loss, sum, 1e-6 * sum) << folder;
  }
}

TEST_P(TrainEvaluation, TheLikeliestChoicePerTokenIsTheModels) {
  const Fixture fixture(model_fixtures().front());
  const auto model = engine(fixture);
  // The first choice is short, so that a sum of log-likelihoods would nearly always take it.
  std::vector<data::Question> questions;
  for (std::int32_t i = 0; i < 12; ++i) {
    questions.push_back({.prompt = {i, static_cast<std::int32_t>(2 * i + 1)},
                         .choices = {{static_cast<std::int32_t>(3 * i + 5)},
                                     {static_cast<std::int32_t>(i + 40), 17, static_cast<std::int32_t>(i + 2)},
                                     {9, static_cast<std::int32_t>(60 - i)}},
                         .answer = 0});
  }
  std::int64_t by_mean_is_not_by_sum = 0;
  double loss = 0, largest = 0;
  std::int64_t tokens = 0;
  for (std::size_t q = 0; q < questions.size(); ++q) {
    std::vector<double> sums, means;
    for (const Document& document : data::choice_documents({questions[q]})) {
      const auto [losses, largest_here] = reference(*model, pack(std::span(&document, 1)));
      largest = std::max(largest, largest_here);
      const auto labels = static_cast<double>(document.labels.size() - questions[q].prompt.size());
      sums.push_back(std::accumulate(losses.begin(), losses.end(), 0.0));
      means.push_back(sums.back() / labels);
    }
    const auto best = std::min_element(means.begin(), means.end()) - means.begin();
    by_mean_is_not_by_sum += best != std::min_element(sums.begin(), sums.end()) - sums.begin();
    questions[q].answer = q % 3 == 0 ? (best + 1) % 3 : best;  // a third of the answers are not the model's
    loss += sums[static_cast<std::size_t>(questions[q].answer)];
    tokens += static_cast<std::int64_t>(questions[q].choices[static_cast<std::size_t>(questions[q].answer)].size());
  }
  EXPECT_GT(by_mean_is_not_by_sum, 0) << "the questions do not tell the two apart";
  const train::ChoiceEvaluation result = train::evaluate_choices(*model, questions);
  EXPECT_EQ(result.questions, 12);
  EXPECT_EQ(result.tokens, tokens);
  EXPECT_DOUBLE_EQ(result.accuracy, 8.0 / 12.0);
  EXPECT_NEAR(result.loss, loss / static_cast<double>(tokens), tolerance(largest));
}

TEST_P(TrainEvaluation, ThePlanHoldsForRowLosses) {
  const Fixture fixture(model_fixtures().front());
  const PackedBatch batch = pack(fixture.documents);
  const train::EngineOptions options = {.device = device(),
                                        .compute = dtype(),
                                        .training = false,
                                        .max_tokens = batch.token_count(),
                                        .max_document = 64,
                                        .row_losses = true};
  const auto model = train::Engine::create(fixture.config, options);
  model->load(io::Checkpoint(fixture.folder));
  model->row_losses(batch);
  EXPECT_LE(model->exec().arena().peak(), train::Engine::plan(fixture.config, options).device_peak);
}

// Engines that take so little at once that there are many batches, and documents of many lengths.
class TrainEvaluationTeam : public ::testing::Test {
 protected:
  static constexpr std::int64_t max_tokens = 40;

  TrainEvaluationTeam() {
    for (std::size_t length = 3; length < 24; ++length) {
      for (Document document : fixture.documents) {
        truncate(document, length);
        documents.push_back(std::move(document));
      }
    }
  }

  std::unique_ptr<train::Engine> engine() const {
    auto engine = train::Engine::create(
        fixture.config, {.training = false, .max_tokens = max_tokens, .max_document = max_tokens, .row_losses = true});
    engine->load(io::Checkpoint(fixture.folder));
    return engine;
  }

  static train::EvaluationTeam team_of(const std::shared_ptr<parallel::Communicator>& ranks, std::atomic<int>& idle) {
    return {.ranks = ranks, .cost = {.token = 1, .square = 0.01, .pass = 4}, .idle = [&idle] { ++idle; }};
  }

  Fixture fixture{model_fixtures().front()};
  std::vector<Document> documents;
};

TEST_F(TrainEvaluationTeam, RanksGetWhatOneProcessGets) {
  const train::Evaluation expected = train::evaluate(*engine(), documents);
  ASSERT_GT(expected.valid, 0);
  for (const int size : {2, 3, 4}) {
    std::atomic<int> idle = 0;
    std::vector<train::Evaluation> results(static_cast<std::size_t>(size));
    run_ranks(size, [&](const std::shared_ptr<parallel::Communicator>& ranks) {
      results[static_cast<std::size_t>(ranks->rank())] = train::evaluate(*engine(), documents, team_of(ranks, idle));
    });
    for (const train::Evaluation& result : results) {
      EXPECT_NEAR(result.loss, expected.loss, 1e-6 * expected.loss);
      EXPECT_EQ(result.accuracy, expected.accuracy);
      EXPECT_EQ(result.tokens, expected.tokens);
      EXPECT_EQ(result.valid, expected.valid);
      EXPECT_EQ(result.loss, results[0].loss);
    }
  }
}

// Five ranks, two documents: everybody makes the one round that there is.
TEST_F(TrainEvaluationTeam, WhoHasNoBatchJoinsInWhatTheOthersExchange) {
  documents.resize(2);
  const train::Evaluation expected = train::evaluate(*engine(), documents);
  std::atomic<int> idle = 0;
  run_ranks(5, [&](const std::shared_ptr<parallel::Communicator>& ranks) {
    const train::Evaluation result = train::evaluate(*engine(), documents, team_of(ranks, idle));
    EXPECT_NEAR(result.loss, expected.loss, 1e-6 * expected.loss);
  });
  EXPECT_EQ(idle, 3);
}

TEST_F(TrainEvaluationTeam, ChoicesAreTheSame) {
  std::vector<data::Question> questions;
  for (std::int32_t i = 0; i < 17; ++i) {
    questions.push_back({.prompt = {i, 2 * i + 1}, .choices = {{3 * i + 5}, {i + 40, 17, i + 2}}, .answer = i % 2});
  }
  const train::ChoiceEvaluation expected = train::evaluate_choices(*engine(), questions);
  std::atomic<int> idle = 0;
  run_ranks(3, [&](const std::shared_ptr<parallel::Communicator>& ranks) {
    const train::ChoiceEvaluation result = train::evaluate_choices(*engine(), questions, team_of(ranks, idle));
    EXPECT_NEAR(result.loss, expected.loss, 1e-6 * expected.loss);
    EXPECT_EQ(result.accuracy, expected.accuracy);
    EXPECT_EQ(result.tokens, expected.tokens);
  });
}

// Ctrl-C came to rank 1: nobody waits for it.
TEST_F(TrainEvaluationTeam, AllStopWhereOneIsAskedTo) {
  std::atomic<int> idle = 0, stopped = 0;
  run_ranks(3, [&](const std::shared_ptr<parallel::Communicator>& ranks) {
    if (ranks->rank() == 1) {
      ranks->any(true, "evaluating");
      return;
    }
    try {
      train::evaluate(*engine(), documents, team_of(ranks, idle));
    } catch (const Interrupted&) {
      ++stopped;
    }
  });
  EXPECT_EQ(stopped, 2);
}

INSTANTIATE_TEST_SUITE_P(, TrainEvaluation,
                         ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) { return case_name(std::get<0>(info.param), std::get<1>(info.param)); });

}  // namespace
}  // namespace inlay::testing
