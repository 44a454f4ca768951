#include "gguf/export.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/hub_arguments.h"
#include "core/arena.h"
#include "core/console.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "io/paths.h"

namespace inlay::cli {

namespace {

struct ExportArguments {
  std::string model, output, adapter, type = "auto", pre, name;
  HubArguments hub;
  bool quiet = false;
};

std::optional<gguf::NumberType> type_of(const std::string& name) {
  using gguf::NumberType;
  for (const NumberType type :
       {NumberType::f32, NumberType::f16, NumberType::bf16, NumberType::q8_0, NumberType::mxfp4}) {
    if (name == name_of(type)) return type;
  }
  return std::nullopt;
}

int run(const ExportArguments& arguments) {
  install_interrupt_handler();
  Console console(arguments.quiet);
  gguf::ExportOptions options{.model = arguments.hub.model_folder(arguments.model, arguments.quiet),
                              .output = arguments.output,
                              .adapter = arguments.adapter,
                              .type = type_of(arguments.type),
                              .pre = {},
                              .title = {}};
  if (!arguments.pre.empty()) options.pre = arguments.pre;
  // A cache's folders are named by hashes.
  const bool by_name = !io::exists(arguments.model);
  if (by_name) options.title = std::filesystem::path(arguments.model).filename().string();
  if (!arguments.name.empty()) options.title = arguments.name;
  const gguf::ExportReport report = gguf::export_model(options, console);
  for (const std::string& note : report.notes) console.line(note);
  console.line(fmt::format("exported: {} in {}, {} tensors, {}, to {}", report.architecture, name_of(report.type),
                           report.tensors, format_bytes(report.bytes), arguments.output));
  return 0;
}

}  // namespace

void add_export(Program& program) {
  CLI::App* command = program.app.add_subcommand("export", "Write a model in another program's format");
  command->require_subcommand(1);
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* one = command->add_subcommand("gguf", "One file for llama.cpp, Ollama and what is built on them");
  one->add_option("model", arguments->model, model_meaning)->required();
  one->add_option("output", arguments->output, "The file to write, such as model.gguf")->required();
  one->add_option("--type", arguments->type,
                  "Type of the matrices: f32, f16, bf16, q8_0 or mxfp4; auto: as in the checkpoint. mxfp4: the "
                  "experts of a mixture, the rest in q8_0")
      ->check(one_of({"auto", "f32", "f16", "bf16", "q8_0", "mxfp4"}));
  one->add_option("--adapter", arguments->adapter, "Folder of an adapter of the model, to be merged into the weights");
  one->add_option("--name", arguments->name, "The model's name in the file (by default the folder's)");
  one->add_option("--pre", arguments->pre,
                  "llama.cpp's name for how the tokenizer splits texts, if it is not recognised");
  arguments->hub.add_to(*one);
  one->add_flag("--quiet", arguments->quiet, "Print errors and results only");
  one->callback([&program, arguments] { program.action = [arguments] { return run(*arguments); }; });
}

}  // namespace inlay::cli
