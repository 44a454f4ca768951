#include "train/merge.h"
#include "cli/commands.h"
#include "cli/hub_arguments.h"
#include "core/console.h"
#include "core/error.h"

namespace inlay::cli {

namespace {

struct MergeArguments {
  HubArguments hub;
  std::string base, adapter, output, dtype = "base";
  bool quiet = false;
};

int run(const MergeArguments& arguments) {
  train::MergeOptions options{
      .base = arguments.base, .adapter = arguments.adapter, .output = arguments.output, .dtype = {}};
  if (arguments.dtype == "mxfp4") {
    options.mxfp4 = true;
  } else if (arguments.dtype != "base") {
    options.dtype = parse_floating_dtype(arguments.dtype);
    if (!options.dtype || *options.dtype == DType::f64) {
      user_error("--dtype: expected base, fp32, bf16, fp16 or mxfp4, got '{}'", arguments.dtype);
    }
  }
  Console console(arguments.quiet);
  const train::MergeReport report = train::merge(options, console);
  console.line(
      fmt::format("merged: {} matrices; the weights hold {:.2f} % of what was learned, and rounding errors of {:.2f} % "
                  "of it; the model is in {}",
                  report.matrices, 100 * report.kept, 100 * report.noise, arguments.output));
  if (report.noise > 0.5 && arguments.dtype != "fp32") {
    console.line("small changes are lost to rounding here; --dtype fp32 keeps them, as does the adapter itself");
  }
  return 0;
}

}  // namespace

void add_merge(Program& program) {
  auto arguments = std::make_shared<MergeArguments>();
  CLI::App* command = program.app.add_subcommand("merge", "Write a model with an adapter's changes in its weights");
  command->add_option("base", arguments->base, "Model that the adapter was trained on: a folder, or a name on the hub")
      ->required();
  arguments->hub.add_to(*command);
  command->add_option("adapter", arguments->adapter, "Adapter folder, of inlay train or PEFT")->required();
  command->add_option("output", arguments->output, "New model folder")->required();
  command->add_option("--dtype", arguments->dtype,
                      "base: each tensor as in the base model, experts in MXFP4 as bf16; fp32, bf16, fp16; mxfp4: "
                      "experts packed again");
  command->add_flag("--quiet", arguments->quiet, "Print errors and results only");
  command->callback([&program, arguments] {
    program.action = [arguments] {
      arguments->base = arguments->hub.model_folder(arguments->base);
      return run(*arguments);
    };
  });
}

}  // namespace inlay::cli
