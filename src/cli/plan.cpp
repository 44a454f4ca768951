#include <filesystem>

#include <nlohmann/json.hpp>

#include "backend/cpu/gemm.h"
#include "cli/commands.h"
#include "core/text.h"
#include "model/families/family.h"
#include "train/find_bases.h"
#include "train/metrics.h"
#include "train/session.h"

namespace inlay::cli {

namespace {

// By the data where it is there, so that plan and run speak of the same batches; else by the configuration's bounds.
train::BatchBounds bounds(const train::TrainOptions& options, std::int64_t vocab, std::size_t& document_bytes,
                          bool& from_data) {
  train::Console console;
  for (const std::string& file : options.datasets) {
    if (!std::filesystem::exists(file)) return train::bounds_of(options);
  }
  std::vector<Document> documents = train::read_documents(options.datasets, vocab, console);
  for (const Document& d : documents)
    document_bytes += 2 * sizeof(std::int32_t) * d.input_ids.size() + sizeof(Document);
  const data::BatchSampler sampler(data::lengths_of(documents), train::batch_options(options));
  from_data = true;
  train::BatchBounds result = train::bounds_of(sampler);
  for (const std::string& file : options.test_datasets) {
    if (!std::filesystem::exists(file)) continue;
    for (const Document& d : train::read_documents({file}, vocab, console)) {
      result.document =
          std::max(result.document, std::min(options.sequence_len, static_cast<std::int64_t>(d.input_ids.size())));
    }
  }
  result.tokens = std::max(result.tokens, result.document);
  return result;
}

int run(const std::string& file, const train::Overrides& overrides, bool as_json) {
  const std::size_t base_bytes = train::resident_bytes();
  const train::TrainOptions options = train::load_options(file, overrides);
  const model::ModelConfig config = model::load_config(options.base_model);
  std::size_t document_bytes = 0;
  bool from_data = false;
  const train::BatchBounds batch = bounds(options, config.vocab, document_bytes, from_data);
  train::EngineOptions engine = train::engine_options(options, batch);
  train::plan_osft(options, config, batch, engine);
  const train::MemoryChoice memory = train::resolve_memory(options, config, engine);
  const train::MemoryPlan& plan = memory.plan;
  // Directions are found before the run takes its memory, so the two do not add up.
  const std::size_t search_peak =
      options.osft.enabled
          ? train::plan_bases(options, config, engine.device, engine.compute, train::step_shape(options, batch))
          : 0;

  // On the CPU the arena is host memory, and products pack their operands beside it; on a GPU the host holds the
  // documents, the piece of a file that is on its way, and what CUDA's libraries take (measured with CUDA 13.0).
  constexpr std::size_t piece = std::size_t{32} << 20, libraries = std::size_t{185} << 20;
  const std::size_t beside = engine.device == Device::cpu
                                 ? std::max(plan.device_peak, search_peak) + backend::cpu::gemm_buffer_bytes()
                                 : piece + libraries;
  const std::size_t host_peak = base_bytes + document_bytes + beside;
  nlohmann::ordered_json classes, phases;
  for (std::size_t i = 0; i < memory_class_count; ++i)
    classes[std::string(name_of(static_cast<MemoryClass>(i)))] = plan.classes[i];
  for (const PhasePeak& phase : plan.phases) phases[phase.phase] = phase.bytes;
  const nlohmann::ordered_json json = {{"device_peak_bytes", plan.device_peak},
                                       {"host_peak_bytes", host_peak},
                                       {"search_peak_bytes", search_peak},
                                       {"classes", classes},
                                       {"phases", phases},
                                       {"device", name_of(engine.device)},
                                       {"dtype", name_of(engine.compute)},
                                       {"activation_policy", plan.policy.str()},
                                       {"micro_batch_tokens", engine.max_tokens},
                                       {"longest_document", engine.max_document},
                                       {"bounds_from", from_data ? "data" : "configuration"},
                                       {"parameters", config.parameter_count()}};
  if (as_json) {
    fmt::print("{}\n", json.dump());
    return 0;
  }
  fmt::print("{} parameters of {}, {} on {}\n", format_count(config.parameter_count()), config.model_type,
             name_of(engine.compute), name_of(engine.device));
  fmt::print("micro-batches of up to {} tokens, documents of up to {} (by {})\n", format_count(engine.max_tokens),
             format_count(engine.max_document), from_data ? "the data" : "the configuration: the data is not there");
  fmt::print("activations: {}\n\n", plan.policy.str());
  fmt::print("at the peak\n");
  for (std::size_t i = 0; i < memory_class_count; ++i) {
    if (plan.classes[i] > 0)
      fmt::print("  {:<12} {:>12}\n", name_of(static_cast<MemoryClass>(i)), format_bytes(plan.classes[i]));
  }
  fmt::print("  {:<12} {:>12}\n\nhighest in each phase\n", "in all", format_bytes(plan.device_peak));
  for (const PhasePeak& phase : plan.phases) fmt::print("  {:<20} {:>12}\n", phase.phase, format_bytes(phase.bytes));
  if (search_peak > 0) fmt::print("\nfinding OSFT's directions, before: {}\n", format_bytes(search_peak));
  fmt::print("\nhost memory: {}\n", format_bytes(host_peak));
  return 0;
}

}  // namespace

void add_plan(Program& program) {
  struct Arguments {
    std::string config;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      program.app.add_subcommand("plan", "Where every byte of a run will be; needs no GPU and no weights");
  command->add_option("config", arguments->config, "YAML file")->required();
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->allow_extras();
  command->callback([&program, command, arguments] {
    program.action = [command, arguments] {
      return run(arguments->config, parse_overrides(command->remaining()), arguments->json);
    };
  });
}

}  // namespace inlay::cli
