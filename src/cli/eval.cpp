#include <cmath>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/model_arguments.h"
#include "model/families/family.h"
#include "train/evaluation.h"

namespace inlay::cli {

namespace {

int run(const ModelArguments& arguments) {
  train::Console console;
  const model::ModelConfig config = model::load_config(arguments.model);
  const std::vector<Document> documents = train::read_documents({arguments.data}, config.vocab, console);
  const auto engine = load_engine(arguments, config, documents, Purpose::evaluation, console);
  const train::Evaluation result = train::evaluate(*engine, documents);
  if (arguments.json) {
    const nlohmann::ordered_json json = {
        {"loss", result.loss},         {"tokens", result.valid},        {"perplexity", std::exp(result.loss)},
        {"accuracy", result.accuracy}, {"documents", documents.size()}, {"input_tokens", result.tokens}};
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("loss {:.6f}, perplexity {:.4f}, accuracy {:.2f} % over {} labels of {} documents\n", result.loss,
               std::exp(result.loss), 100 * result.accuracy, result.valid, documents.size());
  }
  return 0;
}

}  // namespace

void add_eval(Program& program) {
  auto arguments = std::make_shared<ModelArguments>();
  CLI::App* command =
      program.app.add_subcommand("eval", "Loss, perplexity and token accuracy of a model on a JSONL file");
  arguments->add_to(*command);
  command->add_option("--max-tokens", arguments->max_tokens, "Tokens a batch")->check(CLI::PositiveNumber);
  command->callback([&program, arguments] { program.action = [arguments] { return run(*arguments); }; });
}

}  // namespace inlay::cli
