#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/hub_arguments.h"
#include "core/console.h"
#include "data/dataset.h"
#include "io/paths.h"
#include "train/engine.h"
#include "train/session.h"

namespace inlay::cli {

// What the commands that hold a model against a file of documents have in common.
struct ModelArguments {
  std::string model, data, chat_template, adapter;
  HubArguments hub;
  std::string device = "auto", dtype = "fp32", policy = "keep";
  options::MatmulDtype matmul_dtype = options::MatmulDtype::same_as_dtype;
  options::TrainOptions::Fp8 fp8;
  std::int64_t max_tokens = 16384;
  bool json = false, quiet = false;

  void add_to(CLI::App& command) {
    command.add_option("model", model, model_meaning)->required();
    command
        .add_option("--data", data,
                    "Conversations, instructions, texts or tokens: a file, a folder or a pattern (docs/data.md)")
        ->required();
    command.add_option("--chat-template", chat_template,
                       "For conversations: a .jinja file, or a name such as chatml, in place of the model's own");
    command.add_flag("--json", json, "Print one JSON object");
    add_adapter_to(command);
    add_machine_to(command);
  }
  void add_adapter_to(CLI::App& command) {
    command.add_option("--adapter", adapter, "Folder of an adapter of the model, of inlay train or PEFT");
  }
  void add_products_to(CLI::App& command);
  data::DatasetOptions dataset() const {
    data::DatasetOptions result{.path = data, .format = {}};
    if (!chat_template.empty()) result.format.chat_template = chat_template;
    return result;
  }
  // Whose tokenizer and chat template texts are read by: an adapter may bring those that it was trained with.
  const std::string& text_folder() const;
  // Finds the model, which may be given by its name on the hub.
  void find_model() {
    model = hub.model_folder(model, quiet);
    if (!io::exists(model)) user_error("{}: no such model folder", model);
    if (io::is_file(model)) user_error("{}: is a file; expected the folder of a model", model);
  }
  // The same where an adapter may stand in the model's place: it says whose adapter it is.
  void find_model_or_base();
  static constexpr const char* model_or_adapter_meaning =
      "Hugging Face model folder, or a name on the hub (org/name); or an adapter's folder, which names its model";
  void add_machine_to(CLI::App& command) {
    hub.add_to(command);
    command.add_option("--device", device, "auto, cpu or cuda");
    command.add_option("--dtype", dtype, "fp32 or bf16 (auto: as training would)");
    command.add_flag("--quiet", quiet, "Print errors and results only");
  }
};

// The model loaded and ready for batches of at most max_tokens (or the longest document), or to continue so many
// sequences.
std::unique_ptr<train::Engine> load_engine(const ModelArguments& arguments, const model::ModelConfig& config,
                                           const std::vector<Document>& documents, train::Purpose purpose,
                                           Console& console, std::int64_t sequences = 1);

// The model loaded and ready to continue each of the prompts by up to `count` tokens. Ids that the model does not have,
// or a prompt of none, are an error that names `source`.
std::unique_ptr<train::Engine> load_generator(const ModelArguments& arguments, const model::ModelConfig& config,
                                              const std::vector<std::vector<std::int32_t>>& prompts, std::int64_t count,
                                              std::string_view source, Console& console);

}  // namespace inlay::cli
