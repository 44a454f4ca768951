#pragma once

#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "io/json.h"
#include "model/config.h"

// Models of images and text whose text model is one of the families. Its configuration stands under text_config, its
// tensors behind a prefix; it trains, and the rest of the folder stays as it is.
namespace inlay::model {

struct TextPart {
  std::string_view model_type, family;
  bool tied;  // the head, in the models as published
};

std::span<const TextPart> text_parts();
// The model types of these and of the families.
std::set<std::string> known_model_types();
// Null where a model_type is none of these.
const TextPart* find_text_part(std::string_view model_type);

// text_config, with what stands beside it and counts for it as well.
io::Json text_config(const io::Json& json, const TextPart& part);

// The tensors' names as published. Other versions of transformers have another order of words in them: what is in the
// folder decides, where it has weights, about names and about whether there is a head of its own.
void set_text_names(ModelConfig& config);
void settle_text_names(const io::Json& json, ModelConfig& config, const std::filesystem::path& folder);

}  // namespace inlay::model
