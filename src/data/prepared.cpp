#include "data/prepared.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace inlay::data {
namespace {

namespace fs = std::filesystem;

constexpr int version = 3;  // of what reading makes of a row; raise it where that changes

std::uint64_t file_hash(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored) || fs::file_size(path, ignored) == 0) return 0;
  return io::content_hash(io::MappedFile(path).bytes());
}

std::string described(const FormatOptions& o) {
  const nlohmann::ordered_json all = {o.type,
                                      o.field_messages,
                                      o.field_tools,
                                      o.field_system,
                                      o.message_property_mappings,
                                      o.roles,
                                      o.chat_template,
                                      o.roles_to_train,
                                      o.message_field_training,
                                      o.message_field_weight,
                                      o.train_on_eos,
                                      o.eot_tokens,
                                      o.field,
                                      o.drop_system_message,
                                      o.train_on_inputs,
                                      o.field_instruction,
                                      o.field_input,
                                      o.field_output,
                                      o.format,
                                      o.no_input_format};
  return all.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

fs::path prepared_path(const DatasetOptions& dataset, const ReadContext& context) {
  std::string key = fmt::format("{} {} {} {} {} {:016x}", version, described(dataset.format), context.vocab,
                                context.bad_row == BadRow::skip, fs::path(dataset.path).extension().string(),
                                file_hash(dataset.path));
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}) {
    key += fmt::format(" {:016x}", file_hash(context.model / name));
  }
  if (dataset.format.chat_template != "tokenizer_default") {
    key += fmt::format(" {:016x}", file_hash(dataset.format.chat_template));
  }
  const std::uint64_t digest = io::content_hash(std::as_bytes(std::span(key)));
  return context.prepared / fmt::format("{}-{:016x}.tokens", fs::path(dataset.path).stem().string(), digest);
}

}  // namespace inlay::data
