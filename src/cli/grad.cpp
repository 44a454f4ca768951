#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/model_arguments.h"
#include "io/paths.h"
#include "io/safetensors_writer.h"
#include "model/families/family.h"
#include "train/gradients.h"

namespace inlay::cli {

namespace {

struct GradArguments : ModelArguments {
  std::string out;
  bool logits = false;
};

constexpr const char* prefix = "grad.";

int run(const GradArguments& arguments) {
  if (io::exists(arguments.out)) user_error("{}: already exists; choose another --out", arguments.out);
  Console console(arguments.quiet);
  const model::ModelConfig config = model::load_config(arguments.model);
  const std::vector<Document> documents =
      train::read_documents(arguments.dataset(), arguments.text_folder(), config.vocab, console);
  const auto engine =
      load_engine(arguments, config, documents,
                  arguments.logits ? train::Purpose::gradients_and_logits : train::Purpose::gradients, console);

  const PackedBatch batch = pack(documents);
  const train::StepResult step = engine->gradients({batch});
  const double loss = engine->decoder().read_loss(engine->exec()).loss;

  // With an adapter nothing else trains.
  std::optional<adapter::AdapterTargets> adapted;
  std::vector<train::NamedTensor> tensors;
  std::vector<io::TensorSpec> specs;
  if (arguments.adapter.empty()) {
    tensors = train::gradients_of(*engine, prefix);
  } else {
    adapted = adapter::AdapterFile(arguments.adapter, config).targets();
    specs = adapter::tensor_specs(*adapted, DType::f32, prefix);
  }
  if (arguments.logits) {
    // Document by document, so that each can be held against a model that saw it alone.
    for (std::size_t d = 0; d < documents.size(); ++d) {
      const PackedBatch alone = pack(std::span(documents).subspan(d, 1));
      std::vector<std::int32_t> rows(static_cast<std::size_t>(alone.token_count()));
      for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
      tensors.push_back({{"logits." + std::to_string(d), DType::f32, {alone.token_count(), config.vocab}},
                         engine->decoder().logits(engine->exec(), alone, rows)});
    }
  }
  for (const train::NamedTensor& tensor : tensors) specs.push_back(tensor.spec);
  io::SafetensorsWriter writer(arguments.out, specs);
  for (const train::NamedTensor& tensor : tensors)
    writer.write(tensor.spec.name, std::as_bytes(std::span(tensor.values)));
  if (adapted) {
    adapter::write_tensors(writer, *adapted, train::adapter_source(*engine, *adapted, train::AdapterNumbers::gradients),
                           DType::f32, prefix);
  }
  writer.finish();

  const nlohmann::ordered_json json = {{"loss", loss}, {"tokens", step.valid}, {"out", arguments.out}};
  if (arguments.json) {
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("loss {:.9g} over {} labels; gradients in {}\n", loss, step.valid, arguments.out);
  }
  return 0;
}

}  // namespace

void add_grad(Program& program) {
  auto arguments = std::make_shared<GradArguments>();
  CLI::App* command = program.app.add_subcommand(
      "grad", "Write the gradient of every parameter, or of an adapter, for all documents as one batch");
  arguments->add_to(*command);
  arguments->add_products_to(*command);
  command->add_option("--out", arguments->out, "safetensors file to write")->required();
  command->add_flag("--logits", arguments->logits, "Write logits.<document> as well");
  command->add_option("--policy", arguments->policy, "Activation policy: keep, recompute, ...");
  command->callback([&program, arguments] {
    program.action = [arguments] {
      arguments->find_model();
      return run(*arguments);
    };
  });
}

}  // namespace inlay::cli
