#include "cli/model_arguments.h"

#include <algorithm>
#include <map>

#include "adapter/config.h"
#include "cli/checks.h"
#include "core/error.h"
#include "io/hub.h"
#include "io/paths.h"

namespace inlay::cli {

const std::string& ModelArguments::text_folder() const {
  return !adapter.empty() && io::exists(std::filesystem::path(adapter) / "tokenizer.json") ? adapter : model;
}

void ModelArguments::find_model_or_base() {
  const std::filesystem::path folder = hub.model_folder(model, quiet);
  if (!io::exists(folder / adapter::config_file) || io::exists(folder / "config.json")) return find_model();
  if (!adapter.empty()) {
    user_error("{}: holds an adapter, and so does {} (--adapter); expected the folder of a model", model, adapter);
  }
  const std::string base = adapter::read_adapter_config(folder).base_model;
  const auto advice = [&] { return fmt::format("give the model's folder, and --adapter {}", model); };
  if (base.empty()) {
    user_error("{}: {} does not say whose adapter it is (base_model_name_or_path); {}", model, adapter::config_file,
               advice());
  }
  if (!io::exists(base) && !io::is_hub_name(base)) {
    user_error("{}: is an adapter of {}, but there is no such folder; {}", model, base, advice());
  }
  if (!quiet) fmt::print(stderr, "{} is an adapter of {}\n", model, base);
  adapter = folder;
  model = base;
  find_model();
}

void ModelArguments::add_products_to(CLI::App& command) {
  using options::MatmulDtype;
  const std::map<std::string, MatmulDtype> dtypes = {{"auto", MatmulDtype::same_as_dtype}, {"fp8", MatmulDtype::fp8}};
  const std::map<std::string, ops::Fp8Recipe> recipes = {
      {"block", ops::Fp8Recipe::block}, {"row", ops::Fp8Recipe::row}, {"tensor", ops::Fp8Recipe::tensor}};
  const std::map<std::string, DType> formats = {{"e4m3", DType::e4m3}, {"e5m2", DType::e5m2}};
  add_choice(command, "--matmul-dtype", matmul_dtype, dtypes,
             "Type of the layers' matrix products: auto (--dtype) or fp8");
  add_choice(command, "--fp8-recipe", fp8.recipe, recipes, "As fp8.recipe of a configuration: block, row or tensor");
  add_choice(command, "--fp8-gradients", fp8.gradients, formats, "As fp8.gradients of a configuration: e4m3 or e5m2");
  const std::map<std::string, ops::Fp8Sums> sums = {{"fp32", ops::Fp8Sums::fp32}, {"fast", ops::Fp8Sums::fast}};
  add_choice(command, "--fp8-sums", fp8.sums, sums, "As fp8.sums of a configuration: fp32 or fast");
}

std::unique_ptr<train::Engine> load_engine(const ModelArguments& arguments, const model::ModelConfig& config,
                                           const std::vector<Document>& documents, train::Purpose purpose,
                                           Console& console, std::int64_t sequences) {
  std::int64_t longest = 1, total = 0;
  for (const Document& d : documents) {
    longest = std::max(longest, static_cast<std::int64_t>(d.input_ids.size()));
    total += static_cast<std::int64_t>(d.input_ids.size());
  }
  const train::Machine machine = train::resolve_machine(arguments.device, arguments.dtype);
  train::EngineOptions options = train::engine_options(purpose, machine, {.document = longest});
  options::TrainOptions products;
  products.matmul_dtype = arguments.matmul_dtype;
  products.fp8 = arguments.fp8;
  options.fp8 = train::fp8_of(products, machine);
  if (purpose == train::Purpose::generation) options.decode_sequences = sequences;
  options.policy = model::ActivationPolicy::parse(arguments.policy);
  // Gradients are those of one batch of everything.
  options.max_tokens =
      options.training ? std::max(total, longest) : std::clamp(total, longest, std::max(longest, arguments.max_tokens));
  return train::load_engine(arguments.model, config, options, console, arguments.adapter);
}

std::unique_ptr<train::Engine> load_generator(const ModelArguments& arguments, const model::ModelConfig& config,
                                              const std::vector<std::vector<std::int32_t>>& prompts, std::int64_t count,
                                              std::string_view source, Console& console) {
  std::vector<Document> longest(1);
  for (const std::vector<std::int32_t>& prompt : prompts) {
    if (prompt.empty()) user_error("{}: expected text, got nothing", source);
    for (const std::int32_t id : prompt) {
      if (id >= 0 && id < config.vocab) continue;
      user_error("{}: {} is not a token of this model (0 to {})", source, id, config.vocab - 1);
    }
    const std::size_t length = prompt.size() + static_cast<std::size_t>(count);
    if (length > longest[0].input_ids.size()) longest[0].input_ids.resize(length);
  }
  return load_engine(arguments, config, longest, train::Purpose::generation, console,
                     static_cast<std::int64_t>(prompts.size()));
}

}  // namespace inlay::cli
