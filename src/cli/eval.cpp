#include <cmath>

#include <nlohmann/json.hpp>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/model_arguments.h"
#include "core/text.h"
#include "model/families/family.h"
#include "train/evaluation.h"

namespace inlay::cli {

namespace {

int run_choices(const ModelArguments& arguments, const model::ModelConfig& config, Console& console) {
  const std::vector<data::Question> questions = data::read_choices(arguments.data, config.vocab);
  const auto engine =
      load_engine(arguments, config, data::choice_documents(questions), train::Purpose::choices, console);
  const train::ChoiceEvaluation result = train::evaluate_choices(*engine, questions);
  if (arguments.json) {
    const nlohmann::ordered_json json = {{"choice_accuracy", result.accuracy},
                                         {"loss", result.loss},
                                         {"questions", result.questions},
                                         {"tokens", result.tokens}};
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("choice accuracy {:.2f} % of {}, loss of the correct choices {:.6f}\n", 100 * result.accuracy,
               counted(result.questions, "question"), result.loss);
  }
  return 0;
}

int run(const ModelArguments& arguments) {
  Console console(arguments.quiet);
  const model::ModelConfig config = model::load_config(arguments.model);
  if (io::is_file(arguments.data) && data::holds_choices(arguments.data))
    return run_choices(arguments, config, console);
  const std::vector<Document> documents =
      train::read_documents(arguments.dataset(), arguments.text_folder(), config.vocab, console);
  const auto engine = load_engine(arguments, config, documents, train::Purpose::evaluation, console);
  const train::Evaluation result = train::evaluate(*engine, documents);
  if (result.valid == 0) user_error("{}: none of its labels counts, so there is no loss", arguments.data);
  if (arguments.json) {
    const nlohmann::ordered_json json = {
        {"loss", result.loss},         {"tokens", result.valid},        {"perplexity", std::exp(result.loss)},
        {"accuracy", result.accuracy}, {"documents", documents.size()}, {"input_tokens", result.tokens}};
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("loss {:.6f}, perplexity {:.4f}, accuracy {:.2f} % over {} of {}\n", result.loss, std::exp(result.loss),
               100 * result.accuracy, counted(result.valid, "label"), counted(std::ssize(documents), "document"));
  }
  return 0;
}

}  // namespace

void add_eval(Program& program) {
  auto arguments = std::make_shared<ModelArguments>();
  CLI::App* command = program.app.add_subcommand(
      "eval",
      "Loss, perplexity and token accuracy of a model on a JSONL file; choice accuracy if its lines have choices");
  arguments->add_to(*command);
  command->add_option("--max-tokens", arguments->max_tokens, "Tokens per batch")->check(whole(1));
  command->callback([&program, arguments] {
    program.action = [arguments] {
      arguments->find_model();
      return run(*arguments);
    };
  });
}

}  // namespace inlay::cli
