#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "support/small_run.h"

// Early stopping, the best checkpoint, and checkpoints that hold a model alone, as a user meets them. With
// greater_is_better a run that learns gets worse with every step: its best step is the first.
namespace inlay::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const std::string worse = "eval_steps: 1\nmetric_for_best_model: loss\ngreater_is_better: true\n";

class CliBestModel : public ::testing::Test {
 protected:
  CommandResult train(const std::string& more, const Words& arguments = {}, CommandLimits limits = {}) const {
    return run.train(run.evaluation() + more, arguments, std::move(limits));
  }
  double loss_after(std::int64_t step) const {
    for (const auto& record : run.metrics()) {
      if (record.at("step") == step && record.contains("eval_loss")) return record.at("eval_loss");
    }
    ADD_FAILURE() << "step " << step << " was not evaluated";
    return 0;
  }
  std::string model(const std::string& checkpoint = ".") const {
    return read_text(run.path(checkpoint) / "model.safetensors");
  }

  SmallRun run;
};

TEST_F(CliBestModel, PatienceEndsTheRunAndTheBestModelIsTheResult) {
  const CommandResult result = train(worse + "max_steps: 10\nsave_steps: 1\nearly_stopping_patience: 2\n");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("stopped early: 2 evaluations in a row were no better than that of step 1"));
  EXPECT_THAT(result.err, HasSubstr("the model of step 1, the best, is in"));
  const auto summary = run.summary();
  EXPECT_EQ(summary.at("steps"), 3);
  EXPECT_EQ(summary.at("best").at("step"), 1);
  EXPECT_EQ(summary.at("result_step"), 1);
  EXPECT_EQ(summary.at("stopped_early").at("evaluations"), 2);
  EXPECT_EQ(summary.at("eval_loss"), loss_after(1));
  EXPECT_EQ(model(), model("checkpoint-1"));
  const CommandResult evaluated =
      inlay({"eval", run.path(), "--data", run.data(), "--json", "--quiet", "--device", "cpu", "--dtype", "fp32"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_NEAR(nlohmann::json::parse(evaluated.out).at("loss").get<double>(), loss_after(1), 1e-5);
}

// What is better by less than the threshold is the best, and no reason to go on.
TEST_F(CliBestModel, AThresholdIsNamed) {
  const CommandResult result =
      train("max_steps: 10\nsave_steps: 1\neval_steps: 1\nearly_stopping_patience: 2\nearly_stopping_threshold: 100\n");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("stopped early: 2 evaluations in a row were no better by more than 100 "
                                    "(early_stopping_threshold)"));
}

TEST_F(CliBestModel, ARunThatStoppedEarlyGoesOnWithMorePatience) {
  const std::string more = worse + "max_steps: 10\nsave_steps: 2\nearly_stopping_patience: ";
  ASSERT_EQ(train(more + "2\n").code, 0);
  EXPECT_THAT(run.checkpoints(), ElementsAre("checkpoint-1", "checkpoint-2", "checkpoint-3"));  // best, regular, last
  const CommandResult again = train(more + "2\n", {"--resume"});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("it stopped early after step 3, because 2 evaluations in a row were no better than "
                                   "the best; to continue, raise early_stopping_patience"));
  const CommandResult longer = train(more + "4\n", {"--resume"});
  ASSERT_EQ(longer.code, 0) << longer.err;
  EXPECT_THAT(longer.err, HasSubstr("resuming after step 3"));
  EXPECT_EQ(run.summary().at("steps"), 5);
  EXPECT_EQ(run.summary().at("best").at("step"), 1);  // it has not forgotten
  EXPECT_EQ(model(), model("checkpoint-1"));
  const auto metrics = run.metrics();
  EXPECT_EQ(std::count_if(metrics.begin(), metrics.end(), [](const auto& r) { return r.contains("eval_loss"); }), 6);
}

TEST_F(CliBestModel, SaveTotalLimitNeverRemovesTheBest) {
  ASSERT_EQ(train(worse + "max_steps: 5\nsave_steps: 1\nsave_total_limit: 2\nload_best_model_at_end: true\n").code, 0);
  EXPECT_THAT(run.checkpoints(), ElementsAre("checkpoint-1", "checkpoint-5"));
  EXPECT_EQ(model(), model("checkpoint-1"));
  fs::remove_all(run.path());
  // Nor the last, from which a run goes on.
  ASSERT_EQ(train(worse + "max_steps: 5\nsave_steps: 1\nsave_total_limit: 1\n").code, 0);
  EXPECT_THAT(run.checkpoints(), ElementsAre("checkpoint-1", "checkpoint-5"));
  EXPECT_NE(model(), model("checkpoint-1"));  // nobody asked for the best as the result
  EXPECT_EQ(run.summary().at("result_step"), 5);
}

TEST_F(CliBestModel, EachBestIsSavedAndGivesWayToTheNext) {
  const std::string more = "eval_steps: 1\nmax_steps: 4\nload_best_model_at_end: true\n";
  ASSERT_EQ(train(more).code, 0);
  EXPECT_THAT(run.checkpoints(), ElementsAre("checkpoint-3"));
  EXPECT_EQ(run.summary().at("result_step"), 4);  // the last was the best
  const std::string best = model();
  fs::remove_all(run.path());
  ASSERT_EQ(train("max_steps: 4\n").code, 0);
  EXPECT_EQ(model(), best);  // and is what it would have been anyway
}

TEST_F(CliBestModel, AResumedRunRemembersTheBest) {
  const std::string more = worse + "max_steps: 5\nsave_steps: 1\nload_best_model_at_end: true\n";
  ASSERT_EQ(train(more).code, 0);
  const std::string whole = model();
  for (const char* name : {"checkpoint-3", "checkpoint-4", "checkpoint-5", "summary.json", "model.safetensors"}) {
    fs::remove_all(run.path(name));
  }
  ASSERT_EQ(train(more, {"--resume"}).code, 0);
  EXPECT_EQ(run.summary().at("best").at("step"), 1);
  EXPECT_EQ(model(), whole);
}

TEST_F(CliBestModel, ABestThatIsGoneIsSaidAndTheLastStepIsTheResult) {
  const std::string more = worse + "max_steps: 4\nsave_steps: 2\nload_best_model_at_end: true\n";
  ASSERT_EQ(train(more).code, 0);
  for (const char* name : {"checkpoint-1", "checkpoint-4", "summary.json"}) fs::remove_all(run.path(name));
  const CommandResult resumed = train(more, {"--resume"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("checkpoint-1, the best checkpoint, is gone: the result is the last step's"));
  EXPECT_EQ(model(), model("checkpoint-4"));
}

TEST_F(CliBestModel, OnSeveralProcessesAsOnOne) {
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
  const std::string more =
      worse + "max_steps: 10\nsave_steps: 2\nsave_total_limit: 1\nearly_stopping_patience: 3\nparallel: {zero: 3}\n";
  const CommandResult result = train(more, {"--processes", "2"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(run.summary().at("steps"), 4);
  EXPECT_EQ(run.summary().at("result_step"), 1);
  EXPECT_THAT(run.checkpoints(), ElementsAre("checkpoint-1", "checkpoint-4"));
  EXPECT_EQ(model(), model("checkpoint-1"));
  const CommandResult longer = train(more, {"--processes", "3", "--resume", "--early_stopping_patience", "4"});
  ASSERT_EQ(longer.code, 0) << longer.err;
  EXPECT_EQ(run.summary().at("steps"), 5);
  EXPECT_EQ(run.summary().at("result_step"), 1);
}

TEST_F(CliBestModel, WhatOsftLearnedOutsideItsDirectionsIsThatOfTheResult) {
  const CommandResult result = train(worse +
                                     "max_steps: 3\nload_best_model_at_end: true\n"
                                     "osft: {unfreeze_rank_ratio: 0.5, cache: off, basis: weights}\n");
  ASSERT_EQ(result.code, 0) << result.err;
  const double leak = run.summary().at("osft").at("leak");
  EXPECT_GT(leak, 0);
  EXPECT_LE(leak, 1e-5);
}

TEST_F(CliBestModel, SaveOnlyModelWritesModelsThatLoadAndCannotBeResumed) {
  const std::string more = "max_steps: 4\nsave_steps: 2\nsave_only_model: true\n";
  ASSERT_EQ(train(more).code, 0);
  EXPECT_THAT(run.checkpoints(), ElementsAre("checkpoint-2", "checkpoint-4"));
  EXPECT_FALSE(fs::exists(run.path("checkpoint-2/optimizer.safetensors")));
  EXPECT_EQ(model("checkpoint-4"), model());
  const CommandResult evaluated = inlay({"eval", run.path("checkpoint-2"), "--data", run.data(), "--quiet"});
  EXPECT_EQ(evaluated.code, 0) << evaluated.err;
  fs::remove(run.path("summary.json"));
  const CommandResult resumed = train(more, {"--resume"});
  EXPECT_EQ(resumed.code, 2);
  EXPECT_THAT(resumed.err, HasSubstr("the run's checkpoints hold only models (save_only_model), so it cannot continue "
                                     "from them; choose one of them as the base_model of a new run"));
  EXPECT_THAT(train(more).err, HasSubstr("so it cannot continue from them; choose another folder"));
}

TEST_F(CliBestModel, ASignalSavesEverythingAllTheSame) {
  const std::string more = "max_steps: 100000\nsave_steps: 3\nsave_only_model: true\n";
  const CommandResult stopped =
      train(more, {}, {.interrupt_when = [&] { return fs::exists(run.path("checkpoint-3")); }});
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  const CommandResult resumed = train(more, {"--resume"}, {.interrupt_after_ms = 1500});
  EXPECT_EQ(resumed.code, 130) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("resuming after step"));
}

// As transformers' SaveStrategy.BEST: these checkpoints and no others, the last step's evaluation among them.
TEST_F(CliBestModel, BestIsASaveStrategy) {
  ASSERT_EQ(train("eval_steps: 1\nmax_steps: 4\nsave_strategy: best\n").code, 0);
  Words bests;
  for (const auto& record : run.metrics()) {
    if (!record.contains("eval_loss") || record.at("step") == 0) continue;
    const auto step = record.at("step").get<std::int64_t>();
    if (record.at("best_step") == step) bests.push_back("checkpoint-" + std::to_string(step));
  }
  EXPECT_GT(bests.size(), 1u);
  EXPECT_EQ(bests.back(), "checkpoint-4");
  EXPECT_EQ(run.checkpoints(), bests);
  EXPECT_EQ(model(), model("checkpoint-4"));
  fs::remove_all(run.path());
  ASSERT_EQ(train(worse + "max_steps: 4\nsave_strategy: best\n").code, 0);
  EXPECT_THAT(run.checkpoints(), ElementsAre("checkpoint-1"));
  EXPECT_NE(model(), model("checkpoint-1"));  // nobody asked for the best as the result
  const CommandResult resumed = train(worse + "max_steps: 4\nsave_strategy: best\n", {"--resume"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
}

TEST_F(CliBestModel, KeysThatHaveNothingToActOnAreErrors) {
  const auto error_of = [&](const std::string& more, bool evaluates = true) {
    const CommandResult result = run.train("max_steps: 1\n" + (evaluates ? run.evaluation() : "") + more);
    EXPECT_EQ(result.code, 2) << more;
    return result.err;
  };
  EXPECT_THAT(error_of("early_stopping_patience: 2\n", false),
              HasSubstr("early_stopping_patience is given, but neither test_datasets nor val_set_size"));
  EXPECT_THAT(error_of("load_best_model_at_end: true\n"),
              HasSubstr("load_best_model_at_end is given, but not eval_steps: with one evaluation there is nothing to "
                        "choose"));
  EXPECT_THAT(error_of("metric_for_best_model: accuracy\n"), HasSubstr("metric_for_best_model is given, but not"));
  EXPECT_THAT(error_of("save_strategy: best\n"), HasSubstr("save_strategy: best is given, but not eval_steps"));
  EXPECT_THAT(error_of("save_strategy: best\neval_steps: 1\nsave_steps: 1\n"),
              HasSubstr("save_strategy: best does not go with save_steps"));
  EXPECT_THAT(error_of("metric_for_best_model: bleu\n"), HasSubstr("expected one of auto, eval_loss, loss"));
  EXPECT_THAT(error_of("early_stopping_threshold: 0.1\n"),
              HasSubstr("early_stopping_threshold belongs to early_stopping_patience, which is not given"));
  EXPECT_THAT(error_of("greater_is_better: true\n"),
              HasSubstr("greater_is_better belongs to metric_for_best_model, which is not given"));
  EXPECT_THAT(error_of("save_only_model: true\n"),
              HasSubstr("save_only_model is given, but nothing saves checkpoints: set save_steps"));
  EXPECT_THAT(error_of("report_to: wandb\n"), HasSubstr("wandb sync --sync-tensorboard"));
  EXPECT_THAT(error_of("report_to: [none, tensorboard]\n"), HasSubstr("report_to: none must be the only entry"));
  EXPECT_THAT(error_of("report_to: comet\n"), HasSubstr("expected some of none, tensorboard, mlflow, got 'comet'"));
  EXPECT_THAT(error_of("mlflow_run_name: a\n"),
              HasSubstr("mlflow_run_name is given, but report_to does not name mlflow"));
}

}  // namespace
}  // namespace inlay::testing
