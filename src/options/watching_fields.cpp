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
                      "boards that get every step and evaluation, besides metrics.jsonl (docs/watching.md)");
  field.set = [some = field.set](TrainOptions& o, const YAML::Node& node, const Place& place) {
    for (const std::string& entry : entries_of(node, place, "a list of none, tensorboard, mlflow")) {
      if (entry != "wandb") continue;
      place.fail(
          "Weights & Biases reads TensorBoard's files: write report_to: tensorboard, then wandb sync "
          "--sync-tensorboard (docs/watching.md)");
    }
    some(o, node, place);
    if (o.report_to.size() > 1 && o.reports_to("none")) place.fail("none must be the only entry");
  };
  return field;
}

}  // namespace

const std::vector<Field>& watching_fields() {
  using O = TrainOptions;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  static const std::vector<Field> table = {
      integer("early_stopping_patience", &O::early_stopping_patience, 0,
              "stop after this many evaluations in a row that were no better than the best before them; 0: never"),
      number("early_stopping_threshold", &O::early_stopping_threshold, 0, infinity,
             "by how much an evaluation must be better to count as better for early_stopping_patience"),
      choice("load_best_model_at_end", &O::load_best_model_at_end, {{"auto", {}}, {"true", true}, {"false", false}},
             "the result is the model of the best evaluated step, not of the last: each best so far is saved; auto: "
             "with early_stopping_patience"),
      choice("metric_for_best_model", &O::metric_for_best_model,
             {{"auto", {}},
              {"eval_loss", Metric::eval_loss},
              {"loss", Metric::eval_loss},
              {"eval_perplexity", Metric::eval_perplexity},
              {"perplexity", Metric::eval_perplexity},
              {"eval_accuracy", Metric::eval_accuracy},
              {"accuracy", Metric::eval_accuracy}},
             "the metric that decides which evaluation is best; auto: eval_loss. save_total_limit never removes its "
             "checkpoint"),
      choice("greater_is_better", &O::greater_is_better, {{"auto", {}}, {"true", true}, {"false", false}},
             "whether higher values of it are better; auto: for accuracies"),
      optional_texts("sample_prompts", &O::sample_prompts, "list of texts",
                     "the model's answers to these are written to metrics.jsonl and shown by inlay report: before "
                     "the first step, with every evaluation, and at the end"),
      choice("sample_as", &O::sample_as,
             {{"auto", {}},
              {"chat", data::PromptKind::chat},
              {"text", data::PromptKind::text},
              {"alpaca", data::PromptKind::alpaca}},
             "what these are: user messages, texts to continue, or instructions; auto: chat if there is a chat "
             "template, else text"),
      integer("sample_steps", &O::sample_steps, 0, "steps between these answers; 0: with every evaluation"),
      integer("sample_tokens", &O::sample_tokens, 1, "maximum number of tokens of such an answer"),
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

void validate_watching(const TrainOptions& o, KeyProblems& problems) {
  const auto refuse = [&](bool wrong, const std::string& key, std::string_view why) {
    problems.add_if(wrong, key, fmt::format("{} {}", key, why));
  };
  struct Comparing {
    std::string key, given_as;
    bool given;
  };
  for (const auto& [key, given_as, given] :
       {Comparing{"early_stopping_patience", "early_stopping_patience", o.early_stopping_patience > 0},
        Comparing{"load_best_model_at_end", "load_best_model_at_end", o.load_best_model_at_end.value_or(false)},
        Comparing{"save_strategy", "save_strategy: best", o.save_strategy == When::best},
        Comparing{"metric_for_best_model", "metric_for_best_model", o.metric_for_best_model.has_value()}}) {
    if (!given || (o.evaluates() && o.evaluates_along())) continue;
    problems.add(key, fmt::format("{} is given, but {}", given_as,
                                  o.evaluates() ? "not eval_steps: with one evaluation there is nothing to choose from"
                                                : "neither test_datasets nor val_set_size: there is nothing to "
                                                  "evaluate on"));
  }
  refuse(o.early_stopping_threshold > 0 && o.early_stopping_patience == 0, "early_stopping_threshold",
         "belongs to early_stopping_patience, which is not given");
  refuse(o.greater_is_better && !o.tracks_best(), "greater_is_better",
         "belongs to metric_for_best_model, which is not given");
  // Whoever takes the prompts back for once need not take out what is for them.
  const bool prompted = !o.sample_prompts.empty() || problems.is_taken_back("sample_prompts");
  constexpr std::string_view without_prompts = "belongs to sample_prompts, which is not given";
  refuse(o.sample_as.has_value() && !prompted, "sample_as", without_prompts);
  refuse(o.sample_steps > 0 && !prompted, "sample_steps", without_prompts);
  refuse(o.sample_tokens != TrainOptions{}.sample_tokens && !prompted, "sample_tokens", without_prompts);
  refuse(o.save_only_model && !o.saves_along() && !o.saves_best(), "save_only_model",
         "is given, but nothing saves checkpoints: set save_steps");
  // Whoever switches boards off need not take out what is for them.
  if (o.reports_to("mlflow") || (o.reports_to("none") && problems.is_given("report_to"))) return;
  constexpr std::string_view without_mlflow = "is given, but report_to does not name mlflow";
  refuse(!o.mlflow_tracking_uri.empty(), "mlflow_tracking_uri", without_mlflow);
  refuse(!o.mlflow_experiment_name.empty(), "mlflow_experiment_name", without_mlflow);
  refuse(!o.mlflow_run_name.empty(), "mlflow_run_name", without_mlflow);
}

}  // namespace option
}  // namespace inlay::options
