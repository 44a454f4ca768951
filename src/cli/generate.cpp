#include <unistd.h>

#include <cstdio>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/model_arguments.h"
#include "cli/prompts.h"
#include "core/terminal.h"
#include "core/text.h"
#include "data/tokenizer/text_stream.h"
#include "jinja/chat_template.h"
#include "model/families/family.h"
#include "train/generate.h"

namespace inlay::cli {

namespace {

struct GenerateArguments : ModelArguments {
  GenerateArguments() { dtype = "auto"; }  // to see what a model says its numbers need not be exact

  PromptArguments prompts;
  DrawingArguments drawing;
  std::vector<std::int32_t> ids;
  bool bos = false;
  std::int64_t count = 256;
  std::int32_t stop = -1;
};

// Ids of every prompt.
std::vector<std::vector<std::int32_t>> prompt_ids(const GenerateArguments& arguments,
                                                  const std::optional<data::Tokenizer>& tokenizer,
                                                  const model::ModelConfig& config) {
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::string& prompt : arguments.prompts.prompts) {
    prompts.push_back(arguments.prompts.encode(prompt, *tokenizer, arguments.text_folder()));
  }
  if (!tokenizer) prompts.push_back(arguments.ids);
  if (!arguments.bos) return prompts;
  if (config.bos < 0) user_error("{}: --bos: config.json has no bos_token_id", arguments.model);
  const auto bos = static_cast<std::int32_t>(config.bos);
  for (auto& prompt : prompts) {
    if (prompt.empty() || prompt.front() != bos) prompt.insert(prompt.begin(), bos);
  }
  return prompts;
}

// All prompts go on at once. The first that has not ended is printed as it comes; what the others say meanwhile waits
// for its turn.
class Answers {
 public:
  Answers(const GenerateArguments& arguments, const std::vector<std::vector<std::int32_t>>& prompts,
          const std::optional<data::Tokenizer>& tokenizer, Console& console)
      : arguments_(arguments), prompts_(prompts), tokenizer_(tokenizer), console_(console), ids_(prompts.size()) {
    for (const std::vector<std::int32_t>& prompt : prompts) {
      if (tokenizer) streams_.emplace_back(*tokenizer, prompt);
    }
    texts_.resize(prompts.size());
    ended_.resize(prompts.size());
    begin_turn();
  }

  void add(std::size_t which, std::int32_t id) {
    ids_[which].push_back(id);
    say(which, tokenizer_ ? streams_[which].add(id) : fmt::format("{}{}", ids_[which].size() > 1 ? " " : "", id));
  }

  void end(std::size_t which) {
    if (tokenizer_) say(which, streams_[which].finish(was_cut(which)));
    ended_[which] = true;
    while (turn_ < prompts_.size() && ended_[turn_]) {
      arguments_.json ? print_json(turn_) : print("\n");
      if (!arguments_.json) explain_end(turn_);
      ++turn_;
      begin_turn();
    }
  }

 private:
  static void print(const std::string& part) {
    fmt::print("{}", part);
    std::fflush(stdout);
  }

  void say(std::size_t which, const std::string& part) {
    texts_[which] += part;
    if (which == turn_ && !arguments_.json) print(part);
  }

  // On a terminal prompts are told apart by a line of their own.
  void begin_turn() {
    if (turn_ >= prompts_.size() || arguments_.json) return;
    const PromptArguments& given = arguments_.prompts;
    if (prompts_.size() > 1 && is_terminal(STDOUT_FILENO)) {
      const bool colour = wants_colour(STDOUT_FILENO);
      print(fmt::format("{}{}── {} of {}{}{}\n", turn_ > 0 ? "\n" : "", colour ? "\033[2m" : "", turn_ + 1,
                        prompts_.size(), given.continues() ? "" : ": " + given.prompts[turn_],
                        colour ? "\033[0m" : ""));
    }
    if (tokenizer_ && given.continues()) print(given.prompts[turn_]);
    print(texts_[turn_]);
  }

  // To a person who may wonder.
  void explain_end(std::size_t which) const {
    if (!console_.live()) return;
    if (ids_[which].empty()) console_.line("(the model ended its text at once)");
    if (was_cut(which)) console_.line(fmt::format("(cut after {} tokens: --max-new-tokens)", arguments_.count));
  }
  bool was_cut(std::size_t which) const { return static_cast<std::int64_t>(ids_[which].size()) >= arguments_.count; }

  void print_json(std::size_t which) const {
    nlohmann::ordered_json object;
    if (tokenizer_) {
      object["prompt"] = arguments_.prompts.prompts[which];
      object["text"] = texts_[which];
    }
    object["prompt_ids"] = prompts_[which];
    object["ids"] = ids_[which];
    object["ended_by"] = was_cut(which) ? "length" : "stop";
    print(object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }

  const GenerateArguments& arguments_;
  const std::vector<std::vector<std::int32_t>>& prompts_;
  const std::optional<data::Tokenizer>& tokenizer_;
  Console& console_;
  std::vector<data::TextStream> streams_;
  std::vector<std::string> texts_;
  std::vector<std::vector<std::int32_t>> ids_;
  std::vector<bool> ended_;
  std::size_t turn_ = 0;
};

int run(const GenerateArguments& arguments) {
  const bool text = !arguments.prompts.prompts.empty();
  if (text == !arguments.ids.empty()) user_error("generate needs either --prompt or --ids");
  train::GenerateOptions options = {.count = arguments.count, .drawing = arguments.drawing.checked()};
  std::optional<data::Tokenizer> tokenizer;
  if (text) tokenizer = data::Tokenizer::load(arguments.text_folder());
  if (arguments.stop >= 0) {
    options.stops = {arguments.stop};
  } else if (text) {
    options.stops = data::stop_tokens(arguments.model, *tokenizer);
  }

  Console console(arguments.quiet);
  const model::ModelConfig config = model::load_config(arguments.model);
  if (arguments.stop >= config.vocab) {
    user_error("--stop: {} is not a token of this model (0 to {})", arguments.stop, config.vocab - 1);
  }
  const std::vector<std::vector<std::int32_t>> prompts = prompt_ids(arguments, tokenizer, config);
  const auto engine = load_generator(arguments, config, prompts, options.count,
                                     text ? "--prompt, by tokenizer.json" : "--ids", console);
  console.status("");  // what was loaded is no part of the answers' line
  if (text && !arguments.prompts.as && jinja::ChatTemplate::is_in(arguments.text_folder())) {
    console.line("the prompt is continued as text; this is a chat model: add --as chat to ask it as its users do");
  }
  for (const std::vector<std::int32_t>& prompt : prompts) {
    if (static_cast<std::int64_t>(prompt.size()) + options.count <= config.max_positions) continue;
    console.line(fmt::format("the model is made for texts of {} tokens; what it says beyond them may make no sense",
                             format_count(config.max_positions)));
    break;
  }
  Answers answers(arguments, prompts, tokenizer, console);
  options.made = [&](std::size_t which, std::int32_t id) { answers.add(which, id); };
  options.ended = [&](std::size_t which) { answers.end(which); };
  train::generate(*engine, prompts, options);
  return 0;
}

}  // namespace

void add_generate(Program& program) {
  auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* command = program.app.add_subcommand("generate", "Continue prompts, to see what a model has learned");
  command->add_option("model", arguments->model, ModelArguments::model_or_adapter_meaning)->required();
  arguments->prompts.add_to(*command, "Text to continue, as the tokenizer.json of the model reads it");
  command->add_option("--ids", arguments->ids, "Token ids to continue, separated by commas")->delimiter(',');
  command->add_flag("--bos", arguments->bos,
                    "Start each prompt with the model's bos_token_id, as its training documents did");
  command->add_option("--max-new-tokens", arguments->count, "Maximum number of tokens to generate (256)")
      ->check(whole(1, 100'000'000));  // more would fill the memory before anything is planned
  command
      ->add_option("--stop", arguments->stop,
                   "Token id that ends the continuation (with --prompt, by default eos_token, and those "
                   "in generation_config.json)")
      ->check(whole(0));
  arguments->drawing.add_to(*command);
  command->add_flag("--json", arguments->json,
                    "Print one JSON object on a line for each prompt, when its text has ended");
  arguments->add_adapter_to(*command);
  arguments->add_machine_to(*command);
  command->callback([&program, arguments] {
    program.action = [arguments] {
      arguments->find_model_or_base();
      return run(*arguments);
    };
  });
}

}  // namespace inlay::cli
