#pragma once

#include "train/batch_stream.h"
#include "train/checkpoint.h"
#include "train/evaluation.h"
#include "train/metrics.h"
#include "train/output_folder.h"
#include "train/run.h"
#include "train/run_documents.h"
#include "train/run_engine.h"

namespace inlay::train {

// The steps of a run from where it stands to its end: training, evaluating, reporting, saving.
class Loop {
 public:
  // What it is given must outlive it.
  Loop(const options::TrainOptions& options, const RunDocuments& documents, RunEngine& engine, OutputFolder& output,
       Console& console, const MetricsObserver& observer);

  // state: where the run stands. Throws Diverged where numbers are no longer finite.
  RunEnd run(TrainerState state, std::int64_t steps);

 private:
  void write_metrics(const nlohmann::ordered_json& record);
  void check_finite(const StepResult& result);
  // bad: the steps after which the weights are known to give this.
  [[noreturn]] void diverged(const std::string& what, std::int64_t bad);
  // The step's loss is that of the weights before their update: only what is written tells what became of them.
  template <class Write>
  auto write_finite(const Write& write);
  // matmul_share: of the rate that a large product reaches; 0 where it is not known.
  void report(const StepResult& result, double rate, double seconds, double matmul_share);
  // False where an interrupt came: then it is due when the run goes on.
  bool evaluate_now();
  std::filesystem::path save();
  void remove_old_checkpoints();
  RunEnd stop_early();
  RunEnd finish();

  const options::TrainOptions& options_;
  const RunDocuments& documents_;
  Engine& engine_;
  const MemoryPlan& plan_;
  double peak_;  // FLOP/s
  OutputFolder& output_;
  Console& console_;
  ModelOrigin origin_;
  StepTeam team_;
  EvaluationTeam evaluators_;
  const MetricsObserver& observer_;
  std::unique_ptr<MetricsFile> metrics_;
  TrainerState state_;
  Evaluation evaluation_;
  std::int64_t steps_ = 0;
  double pace_ = 0;
  std::size_t host_peak_ = 0;
};

}  // namespace inlay::train
