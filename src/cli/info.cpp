#include <algorithm>
#include <filesystem>
#include <map>
#include <tuple>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/hub_arguments.h"
#include "core/arena.h"
#include "core/error.h"
#include "core/text.h"
#include "data/byte_source.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "io/paths.h"
#include "model/families/family.h"

namespace inlay::cli {

namespace {

std::string_view name_of(model::RopeKind kind) {
  switch (kind) {
    case model::RopeKind::plain: return "default";
    case model::RopeKind::linear: return "linear";
    case model::RopeKind::llama3: return "llama3";
    case model::RopeKind::yarn: return "yarn";
    case model::RopeKind::longrope: return "longrope";
  }
  return "?";
}

nlohmann::ordered_json rope_json(const model::RopeConfig& rope) {
  return {{"kind", name_of(rope.kind)}, {"theta", rope.theta}, {"factor", rope.factor}};
}

// What only some families have, and what a layer may have other than its neighbours.
struct Particulars {
  explicit Particulars(const model::ModelConfig& c) {
    for (const model::LayerConfig& layer : c.layers) {
      window = std::max(window, layer.window);
      with_window += layer.window > 0 ? 1 : 0;
      without_rope += layer.rope == model::LayerRope::none ? 1 : 0;
      with_local_rope += layer.rope == model::LayerRope::local ? 1 : 0;
    }
    for (const auto& [name, value, usual] : {std::tuple("score_softcap", c.score_softcap, 0.0f),
                                             {"logit_softcap", c.logit_softcap, 0.0f},
                                             {"embedding_scale", c.embedding_scale, 1.0f},
                                             {"residual_scale", c.residual_scale, 1.0f},
                                             {"score_scale", c.score_scale, 0.0f},
                                             {"head_scale", c.head_scale, 1.0f}}) {
      if (value != usual) factors[name] = value;
    }
  }

  std::int64_t window = 0, with_window = 0, without_rope = 0, with_local_rope = 0;
  std::map<std::string, float> factors;
};

// What is broken in a file that is called config.json is said by its reader.
bool may_be_config(const std::filesystem::path& file) {
  if (file.filename() == "config.json") return true;
  try {
    const io::Json json = io::Json::read(file);
    return json.is_object() && json.find("model_type");
  } catch (const UserError&) {
    return false;
  }
}

// People ask about data and configurations as well.
void refuse_other_files(const std::filesystem::path& file) {
  const auto refuse = [&](std::string_view who_tells) {
    user_error("{}: is not a model: expected a model folder, its config.json, or a name on the hub; {}", file.string(),
               who_tells);
  };
  const std::string kind = data::content_extension(file);
  if (kind == ".yaml" || kind == ".yml") refuse("inlay plan shows what a configuration needs");
  for (const char* rows : {".json", ".jsonl", ".csv", ".tsv", ".parquet", ".txt"}) {
    if (kind != rows || (kind == ".json" && may_be_config(file))) continue;
    refuse("for data, inlay data RUN.yaml shows what a run would read of it (docs/data.md)");
  }
}

int run(const std::string& folder, bool as_json) {
  namespace fs = std::filesystem;
  const fs::path file = io::is_folder(folder) ? fs::path(folder) / "config.json" : fs::path(folder);
  if (io::is_file(folder)) refuse_other_files(folder);
  if (io::exists(file) && file.extension() == ".json") {
    const io::Json config = io::Json::read(file);
    if (!model::is_known(config)) {
      user_error("{}: {}", file.string(), model::describe_unknown(config, file.parent_path()));
    }
  }
  const model::ModelConfig c = model::load_config(folder);
  const Particulars particulars(c);
  nlohmann::ordered_json json = {{"family", c.model_type},
                                 {"parameters", c.parameter_count()},
                                 {"dtype", inlay::name_of(c.dtype)},
                                 {"layers", c.layer_count()},
                                 {"hidden", c.hidden},
                                 {"intermediate", c.intermediate},
                                 {"heads", c.heads},
                                 {"kv_heads", c.kv_heads},
                                 {"head_dim", c.head_dim},
                                 {"vocab", c.vocab},
                                 {"max_positions", c.max_positions},
                                 {"window", particulars.window},
                                 {"window_layers", particulars.with_window},
                                 {"rope", rope_json(c.rope)},
                                 {"tied_embeddings", c.tied_embeddings},
                                 {"qkv_bias", c.qkv_bias},
                                 {"mlp_bias", c.mlp_bias},
                                 {"qk_norm", c.qk_norm != model::QkNorm::none}};
  if (particulars.with_local_rope > 0) {
    json["local_rope"] = rope_json(c.local_rope);
    json["local_rope_layers"] = particulars.with_local_rope;
  }
  if (particulars.without_rope > 0) json["layers_without_rope"] = particulars.without_rope;
  // As config.json has it, "0.22": a float made a double would be 0.2199999988079071.
  for (const auto& [name, value] : particulars.factors) json[name] = nlohmann::json::parse(fmt::format("{}", value));
  if (c.expert_layers() > 0) {
    json["experts"] = {{"layers", c.expert_layers()},
                       {"count", c.experts.count},
                       {"chosen", c.experts.chosen},
                       {"intermediate", c.experts.intermediate}};
  }
  const bool weights = io::exists(fs::path(folder) / "model.safetensors") ||
                       io::exists(fs::path(folder) / "model.safetensors.index.json");
  if (weights) {
    const io::Checkpoint checkpoint(folder);
    json["files"] = checkpoint.files().size();
    json["tensors"] = checkpoint.names().size();
    json["bytes"] = checkpoint.total_bytes();
  }
  if (as_json) {
    fmt::print("{}\n", json.dump());
    return 0;
  }
  fmt::print("{}: {} parameters, {}\n", c.model_type, format_count(c.parameter_count()), inlay::name_of(c.dtype));
  fmt::print("  {} layers, hidden {}, intermediate {}, vocabulary {}\n", c.layer_count(), c.hidden, c.intermediate,
             format_count(c.vocab));
  fmt::print("  attention: {} heads of {}, {} key/value heads{}{}\n", c.heads, c.head_dim, c.kv_heads,
             c.qkv_bias ? ", biases" : "", c.qk_norm != model::QkNorm::none ? ", normalized queries and keys" : "");
  if (c.expert_layers() > 0) {
    fmt::print("  experts: {} of {} in {} layers, intermediate {}\n", c.experts.chosen, c.experts.count,
               c.expert_layers(), c.experts.intermediate);
  }
  fmt::print("  rotary: {}, theta {}, {} positions\n", name_of(c.rope.kind), c.rope.theta,
             format_count(c.max_positions));
  if (particulars.with_local_rope > 0) {
    fmt::print("  rotary of {} layers: {}, theta {}\n", particulars.with_local_rope, name_of(c.local_rope.kind),
               c.local_rope.theta);
  }
  if (particulars.without_rope > 0) fmt::print("  {} layers without rotation\n", particulars.without_rope);
  if (particulars.with_window > 0) {
    fmt::print("  windows of {} positions in {} layers\n", format_count(particulars.window), particulars.with_window);
  }
  for (const auto& [name, value] : particulars.factors) fmt::print("  {}: {}\n", name, value);
  fmt::print("  embeddings {}\n", c.tied_embeddings ? "tied to the head" : "and head separate");
  if (weights) {
    fmt::print("  weights: {} in {}, {}\n", counted(json["tensors"].get<std::int64_t>(), "tensor"),
               counted(json["files"].get<std::int64_t>(), "file"), format_bytes(json["bytes"].get<std::size_t>()));
  } else {
    fmt::print("  no safetensors weights here\n");
  }
  return 0;
}

}  // namespace

void add_info(Program& program) {
  struct Arguments {
    std::string folder;
    HubArguments hub;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.app.add_subcommand("info", "Family, shapes, parameters and dtype of a model folder");
  command->add_option("model", arguments->folder, "Hugging Face model folder, its config.json, or a name on the hub")
      ->required();
  arguments->hub.add_to(*command);
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->callback([&program, arguments] {
    program.action = [arguments] { return run(arguments->hub.model_folder(arguments->folder), arguments->json); };
  });
}

}  // namespace inlay::cli
