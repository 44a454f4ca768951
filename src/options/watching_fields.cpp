#include "options/watching_fields.h"

namespace inlay::options {

std::string_view name_of(Metric metric) {
  switch (metric) {
    case Metric::eval_loss: return "eval_loss";
    case Metric::eval_perplexity: return "eval_perplexity";
    case Metric::eval_accuracy: return "eval_accuracy";
  }
  return "";
}

bool TrainOptions::reports_to(std::string_view board) const {
  return std::find(report_to.begin(), report_to.end(), board) != report_to.end();
}

namespace option {

namespace {

// Who asks for another board is told how to come to it.
Field boards() {
  Field field = words("report_to", &TrainOptions::report_to, {"none", "tensorboard", "mlflow"},
                      "boards that are told of every step and evaluation, beside metrics.jsonl (docs/watching.md)");
  field.set = [some = field.set](TrainOptions& o, const YAML::Node& node, const Place& place) {
    for (const std::string& entry : entries_of(node, place, "a list of none, tensorboard, mlflow")) {
      if (entry != "wandb") continue;
      place.fail(
          "Weights & Biases reads TensorBoard's files: write report_to: tensorboard, then wandb sync "
          "--sync-tensorboard (docs/watching.md)");
    }
    some(o, node, place);
    if (o.report_to.size() > 1 && o.reports_to("none")) place.fail("none stands alone");
  };
  return field;
}

}  // namespace

const std::vector<Field>& watching_fields() {
  using O = TrainOptions;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  static const std::vector<Field> table = {
      integer("early_stopping_patience", &O::early_stopping_patience, 0,
              "stop after so many evaluations in a row that were no better than the best before them; 0: never"),
      number("early_stopping_threshold", &O::early_stopping_threshold, 0, infinity,
             "by how much an evaluation must be better to count as better for early_stopping_patience"),
      choice("load_best_model_at_end", &O::load_best_model_at_end, {{"auto", {}}, {"true", true}, {"false", false}},
             "the result is the best evaluated step's model and not the last one's: each best so far is saved; auto: "
             "with early_stopping_patience"),
      choice("metric_for_best_model", &O::metric_for_best_model,
             {{"auto", {}},
              {"eval_loss", Metric::eval_loss},
              {"loss", Metric::eval_loss},
              {"eval_perplexity", Metric::eval_perplexity},
              {"perplexity", Metric::eval_perplexity},
              {"eval_accuracy", Metric::eval_accuracy},
              {"accuracy", Metric::eval_accuracy}},
             "what the best evaluation is found by; auto: eval_loss. save_total_limit never removes its checkpoint"),
      choice("greater_is_better", &O::greater_is_better, {{"auto", {}}, {"true", true}, {"false", false}},
             "whether more of it is better; auto: of accuracies"),
      boards(),
      optional_text("mlflow_tracking_uri", &O::mlflow_tracking_uri, "http:// or https:// address",
                    "where MLflow's server is; by default what MLFLOW_TRACKING_URI says"),
      optional_text("mlflow_experiment_name", &O::mlflow_experiment_name, "text",
                    "the experiment that the run belongs to; by default what MLFLOW_EXPERIMENT_NAME says, or inlay"),
      optional_text("mlflow_run_name", &O::mlflow_run_name, "text",
                    "what MLflow calls the run; by default the name of output_dir"),
  };
  return table;
}

void validate_watching(const TrainOptions& o, const std::string& source) {
  const auto is_given = [&](const char* key, bool given) { return given ? key : nullptr; };
  const char* const comparing[] = {is_given("early_stopping_patience", o.early_stopping_patience > 0),
                                   is_given("load_best_model_at_end", o.loads_best()),
                                   is_given("metric_for_best_model", o.metric_for_best_model.has_value())};
  for (const char* key : comparing) {
    if (key == nullptr) continue;
    if (!o.evaluates()) {
      user_error("{}: {} is given, but neither test_datasets nor val_set_size: there is nothing to evaluate on", source,
                 key);
    }
    if (!o.evaluates_along()) {
      user_error("{}: {} is given, but not eval_steps: with one evaluation there is nothing to choose", source, key);
    }
  }
  if (o.early_stopping_threshold > 0 && o.early_stopping_patience == 0) {
    user_error("{}: early_stopping_threshold belongs to early_stopping_patience, which is not given", source);
  }
  if (o.greater_is_better && !o.tracks_best()) {
    user_error("{}: greater_is_better belongs to metric_for_best_model, which is not given", source);
  }
  if (o.save_only_model && !o.saves_along() && !o.loads_best()) {
    user_error("{}: save_only_model is given, but nothing saves checkpoints: set save_steps", source);
  }
  if (o.reports_to("mlflow")) return;
  for (const char* key : {is_given("mlflow_tracking_uri", !o.mlflow_tracking_uri.empty()),
                          is_given("mlflow_experiment_name", !o.mlflow_experiment_name.empty()),
                          is_given("mlflow_run_name", !o.mlflow_run_name.empty())}) {
    if (key != nullptr) user_error("{}: {} is given, but report_to does not name mlflow", source, key);
  }
}

}  // namespace option
}  // namespace inlay::options
