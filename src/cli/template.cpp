#include <cstdio>
#include <filesystem>

#include "cli/commands.h"
#include "cli/hub_arguments.h"
#include "core/error.h"
#include "io/file.h"
#include "io/json.h"
#include "jinja/chat_template.h"

namespace inlay::cli {

namespace {

using jinja::Value;

struct TemplateArguments {
  HubArguments hub;
  std::string chat_template, messages, tools, documents;
  std::vector<std::string> variables;
  bool add_generation_prompt = false;
};

Value read(const std::string& file) {
  return jinja::from(io::read_value(io::read_file(file, io::Json::max_file_bytes), file));
}

// key=value: what is JSON is taken as such, anything else as text.
std::pair<std::string, Value> variable(const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) user_error("--set: expected key=value, got '{}'", assignment);
  const std::string text = assignment.substr(equals + 1);
  Value value;
  try {
    value = jinja::from(io::read_value(text, "--set"));
  } catch (const UserError&) {
    value = jinja::make_string(nullptr, text);
  }
  return {assignment.substr(0, equals), value};
}

int run(const TemplateArguments& arguments) {
  jinja::RenderOptions options{.add_generation_prompt = arguments.add_generation_prompt};
  Value messages = read(arguments.messages);
  if (messages.dict() != nullptr) {  // a row of data: the messages, and what else the template is to see
    const jinja::Dict& row = *messages.dict();
    if (const Value* tools = row.find("tools")) options.tools = *tools;
    if (const Value* documents = row.find("documents")) options.documents = *documents;
    const Value* found = row.find("messages");
    messages = found != nullptr ? Value(*found) : Value();
  }
  if (!messages.is_list()) {
    user_error("{}: expected an array of messages, or an object with \"messages\"", arguments.messages);
  }
  if (!arguments.tools.empty()) options.tools = read(arguments.tools);
  if (!arguments.documents.empty()) options.documents = read(arguments.documents);
  for (const std::string& assignment : arguments.variables) options.variables.push_back(variable(assignment));
  const std::string text = jinja::ChatTemplate::load(arguments.chat_template).render(messages, options).text;
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace

void add_template(Program& program) {
  auto arguments = std::make_shared<TemplateArguments>();
  CLI::App* command = program.app.add_subcommand("template", "Render a conversation with a model's chat template");
  command->add_option("template", arguments->chat_template, "Model folder, a .jinja file, or a name on the hub")
      ->required();
  arguments->hub.add_to(*command);
  command->add_option("messages", arguments->messages, "JSON file: an array of messages, or an object that has them")
      ->required();
  command->add_flag("--add-generation-prompt", arguments->add_generation_prompt,
                    "End with the start of the assistant's answer");
  command->add_option("--tools", arguments->tools, "JSON file: an array of the tools that the model may call");
  command->add_option("--documents", arguments->documents, "JSON file: an array of documents to answer from");
  command
      ->add_option("--set", arguments->variables,
                   "key=value: a variable for the template; the value is JSON, or else text; may be repeated")
      ->take_all();
  command->callback([&program, arguments] {
    program.action = [arguments] {
      arguments->chat_template = arguments->hub.model_folder(arguments->chat_template);
      return run(*arguments);
    };
  });
}

}  // namespace inlay::cli
