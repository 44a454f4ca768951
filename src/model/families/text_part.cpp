#include "model/families/text_part.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "io/checkpoint.h"
#include "io/paths.h"

namespace inlay::model {

namespace {

constexpr std::array text_part_table = {TextPart{"gemma3", "gemma3_text", true},
                                        TextPart{"mistral3", "mistral", false}};

constexpr std::array all_names = {&NameMap::embedding,
                                  &NameMap::final_norm,
                                  &NameMap::head,
                                  &NameMap::attention_norm,
                                  &NameMap::q,
                                  &NameMap::k,
                                  &NameMap::v,
                                  &NameMap::qkv,
                                  &NameMap::output,
                                  &NameMap::q_norm,
                                  &NameMap::k_norm,
                                  &NameMap::attention_output_norm,
                                  &NameMap::mlp_norm,
                                  &NameMap::mlp_output_norm,
                                  &NameMap::gate,
                                  &NameMap::up,
                                  &NameMap::gate_up,
                                  &NameMap::down,
                                  &NameMap::sinks,
                                  &NameMap::router,
                                  &NameMap::expert_gate,
                                  &NameMap::expert_up,
                                  &NameMap::expert_gate_up,
                                  &NameMap::expert_down};

constexpr std::string_view outside = "language_model.", inside = "model.";

}  // namespace

std::span<const TextPart> text_parts() { return text_part_table; }

const TextPart* find_text_part(std::string_view model_type) {
  const auto* found = std::ranges::find(text_part_table, model_type, &TextPart::model_type);
  return found == text_part_table.end() ? nullptr : found;
}

io::Json text_config(const io::Json& json, const TextPart& part) {
  nlohmann::json text = json.object("text_config").raw();
  const auto type = text.find("model_type");
  if (type != text.end() && *type != part.family) {
    json.object("text_config")
        .fail("model_type",
              fmt::format("{} is not supported inside {}; expected {}", type->dump(), part.model_type, part.family));
  }
  for (const char* key : {"dtype", "torch_dtype", "quantization_config"}) {
    if (json.has(key)) text[key] = json.raw().at(key);
  }
  text["tie_word_embeddings"] = json.find_boolean("tie_word_embeddings").value_or(part.tied);
  text["final_logit_softcapping"] = nullptr;  // beside images, transformers does not use it
  return io::Json::parse(text.dump(), json.source() + ": text_config");
}

void set_text_names(ModelConfig& config) {
  for (const auto name : all_names) {
    std::string& text = config.names.*name;
    if (!text.empty()) text = std::string(outside) + text;
  }
}

void settle_text_names(const io::Json& json, ModelConfig& config, const std::filesystem::path& folder) {
  if (!io::exists(folder / io::single_name) && !io::exists(folder / io::index_name)) return;
  const io::Checkpoint checkpoint(folder);
  const std::string newer = std::string(inside) + std::string(outside);
  if (!checkpoint.contains(config.names.embedding)) {
    const std::string embedding = newer + config.names.embedding.substr(newer.size());  // as many letters, turned round
    if (!checkpoint.contains(embedding)) return;                                        // loading says what is missing
    for (const auto name : all_names) {
      std::string& text = config.names.*name;
      if (text.empty()) continue;
      const std::string plain = text.substr(outside.size());
      text = plain.starts_with(inside) ? newer + plain.substr(inside.size()) : plain;
    }
  }
  if (!json.has("tie_word_embeddings")) config.tied_embeddings = !checkpoint.contains(config.names.head);
}

}  // namespace inlay::model
