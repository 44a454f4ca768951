#pragma once

#include "train/batch_stream.h"
#include "train/board.h"
#include "train/checkpoint.h"
#include "train/evaluation.h"
#include "train/history.h"
#include "train/metrics.h"
#include "train/on_policy.h"
#include "train/output_folder.h"
#include "train/run.h"
#include "train/run_documents.h"
#include "train/run_engine.h"
#include "train/samples.h"
#include "train/saver.h"

namespace inlay::train {

// The steps of a run from where it stands to its end: training, evaluating, reporting, saving.
class Loop {
 public:
  // What it is given must outlive it.
  Loop(const options::TrainOptions& options, const RunDocuments& documents, RunEngine& engine, OutputFolder& output,
       Console& console, const MetricsObserver& observer);

  // state: where the run stands. Throws Diverged where numbers are no longer finite.
  RunEnd run(TrainerState state, std::int64_t steps);
  // After run() has thrown what the other ranks know nothing of.
  void give_up() { saver_.give_up(); }

 private:
  // Adds when, which run and which version.
  void write_metrics(nlohmann::ordered_json record);
  void tell_of_boards();
  void end_boards(BoardEnd how);
  void check_finite(const StepResult& result);
  // step: where it was met. bad: the steps after which the weights are known to give this.
  [[noreturn]] void diverged(std::int64_t step, const std::string& what, std::int64_t bad);
  // The step's loss is that of the weights before their update: only what is written tells what became of them.
  template <class Write>
  auto write_finite(const Write& write);
  // matmul_share: of the rate that a large product reaches; 0 where it is not known.
  void report(const StepResult& result, double rate, double seconds, double matmul_share);
  // The present step, unless it was. False where an interrupt came: then it is due when the run goes on.
  bool evaluate_now();
  // What the model answers now to sample_prompts, unless it was asked after this step already.
  void sample_now();
  std::filesystem::path save(Contents contents);
  // What is due after a step: by save_steps, or because it is the best so far. Beside the steps where that is possible.
  void save_where_due();
  // Work that the saver does, or has done, where what went wrong says which step it was.
  template <class Work>
  void with_saver(const Work& work);
  void settle_saver();
  void remove_old_checkpoints();
  // The checkpoint whose model is the result; nothing: it is the last step's own.
  std::optional<std::filesystem::path> best_checkpoint();
  double measured_leak();  // 0 where no directions are frozen
  RunEnd stop_early();
  // While something else than a step was done.
  RunEnd stop_between(std::string_view doing);
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
  std::vector<std::unique_ptr<BoardQueue>> boards_;  // of the leader
  TrainerState state_;
  std::optional<Samples> samples_;
  std::optional<OnPolicyAnswers> answers_;
  std::int64_t sampled_ = -1;  // after which step
  std::int64_t outdone_ = -1;  // the step that was the best before the present one
  std::int64_t saved_ = 0;     // the step of the last checkpoint
  std::int64_t steps_ = 0;
  double expected_speed_;  // tokens/s; 0: unknown
  double pace_ = 0;
  History history_;
  std::size_t host_peak_ = 0;
  Saver saver_;  // last: what it writes from must outlive it
};

}  // namespace inlay::train
