#include "options/dataset_fields.h"

#include "core/text.h"

namespace inlay::options::option {

namespace {

// A map from names that a template has to those of the data.
template <class Member>
Field names(std::string name, Member member, std::string meaning) {
  return {name,
          "map of NAME: NAME",
          std::move(meaning),
          [member](TrainOptions& o, const YAML::Node& node, const Place& place) {
            std::invoke(member, o).clear();
            if (!node.IsMap()) place.fail("expected a map of NAME: NAME");
            for (const auto& item : node) {
              std::invoke(member, o)[item.first.Scalar()] = text_of(item.second, place, "a name");
            }
          },
          [member](const TrainOptions& o, YAML::Emitter& out) { out << YAML::Flow << std::invoke(member, o); },
          {{"type", "object"}, {"additionalProperties", {{"type", "string"}}}}};
}

// The same with several names each.
template <class Member>
Field name_lists(std::string name, Member member, std::string meaning) {
  return {name,
          "map of NAME: list of names",
          std::move(meaning),
          [member](TrainOptions& o, const YAML::Node& node, const Place& place) {
            std::invoke(member, o).clear();
            if (!node.IsMap()) place.fail("expected a map of NAME: [NAME, ...]");
            for (const auto& item : node) {
              std::invoke(member, o)[item.first.Scalar()] = entries_of(item.second, place, "a list of names");
            }
          },
          [member](const TrainOptions& o, YAML::Emitter& out) { out << YAML::Flow << std::invoke(member, o); },
          {{"type", "object"}, {"additionalProperties", one_or_list({{"type", "string"}})}}};
}

TrainOptions with_dataset(const data::DatasetOptions& dataset) {
  TrainOptions options;
  options.datasets = {dataset};
  return options;
}

std::string emitted(const Field& field, const TrainOptions& options) {
  YAML::Emitter out;
  field.emit(options, out);
  return out.c_str();
}

data::DatasetOptions read_entry(const YAML::Node& entry, const Place& place) {
  TrainOptions options = with_dataset({});
  if (entry.IsScalar() && !entry.Scalar().empty()) {
    options.datasets[0].path = entry.Scalar();
    return options.datasets[0];
  }
  if (!entry.IsMap() || !entry["path"]) place.fail("each entry is a file name or {{path: FILE, ...}}");
  std::set<std::string> seen;
  for (const auto& item : entry) {
    const std::string key = item.first.Scalar();
    if (!seen.insert(key).second) place.fail("'{}' is given twice", key);
    const auto& fields = dataset_fields();
    const auto field = std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.name == key; });
    if (field == fields.end()) {
      std::vector<std::string_view> known;
      for (const Field& f : fields) known.push_back(f.name);
      const std::string guess = nearest(key, known);
      place.fail("'{}' is not a known key of an entry{}", key, guess.empty() ? "" : "; did you mean " + guess + "?");
    }
    field->set(options, item.second, {place.source, place.key + "." + key});
  }
  return options.datasets[0];
}

void emit_entry(const data::DatasetOptions& dataset, YAML::Emitter& out) {
  const TrainOptions options = with_dataset(dataset), defaults = with_dataset({});
  out << YAML::Flow << YAML::BeginMap;
  for (const Field& field : dataset_fields()) {
    if (field.name != "path" && emitted(field, options) == emitted(field, defaults)) continue;
    out << YAML::Key << field.name << YAML::Value;
    field.emit(options, out);
  }
  out << YAML::EndMap;
}

Schema entry_schema() {
  Schema properties = Schema::object();
  for (const Field& field : dataset_fields()) {
    properties[field.name] = field.schema;
    properties[field.name]["description"] = field.meaning;
  }
  const Schema map = {{"type", "object"},
                      {"properties", properties},
                      {"required", Schema::array({"path"})},
                      {"additionalProperties", false}};
  return {{"anyOf", {{{"type", "string"}, {"minLength", 1}}, map}}};
}

}  // namespace

const std::vector<Field>& dataset_fields() {
#define INLAY_ENTRY(path) \
  [](auto& o) -> auto& { return o.datasets.front().path; }
  static const std::vector<Field> table = {
      text("path", INLAY_ENTRY(path), "file", "a .jsonl, .json, .parquet or .txt file; required"),
      word("type", INLAY_ENTRY(format.type),
           {"auto", "chat_template", "alpaca", "completion", "input_output", "tokens", "preference", "judged"},
           "what its rows are (docs/data.md); auto: decided by the first row"),
      number("weight", INLAY_ENTRY(weight), 0.0001, 1000,
             "how often its documents occur in an epoch; a fraction takes that share of them"),
      text("chat_template", INLAY_ENTRY(format.chat_template), "tokenizer_default or a .jinja file",
           "the template that renders conversations"),
      texts("roles_to_train", INLAY_ENTRY(format.roles_to_train), "list of roles", "whose turns are learned"),
      word("train_on_eos", INLAY_ENTRY(format.train_on_eos), {"turn", "all", "last", "none"},
           "which end-of-turn tokens are learned: those of learned turns, of all turns, only the last one, or none"),
      optional_texts("eot_tokens", INLAY_ENTRY(format.eot_tokens), "list of tokens",
                     "tokens that end a turn; by default eos_token, or the special token that follows a turn"),
      boolean("train_on_inputs", INLAY_ENTRY(format.train_on_inputs), "also learn prompts and all roles"),
      optional_text("field_messages", INLAY_ENTRY(format.field_messages), "key",
                    "key of the conversation in a row; empty: messages, or conversations"),
      text("field_tools", INLAY_ENTRY(format.field_tools), "key", "key of the conversation's tools in a row"),
      text("field_system", INLAY_ENTRY(format.field_system), "key",
           "key of a system message that is not part of the conversation"),
      names(
          "message_property_mappings", INLAY_ENTRY(format.message_property_mappings),
          "the template's names (role, content, ...) and those in the data; by default role or from, content or value"),
      name_lists("roles", INLAY_ENTRY(format.roles),
                 "roles of the template and their names in the data; by default human is user, gpt is assistant"),
      text("message_field_training", INLAY_ENTRY(format.message_field_training), "key",
           "key in a message: true or false, whether it is learned"),
      optional_text("message_field_weight", INLAY_ENTRY(format.message_field_weight), "key",
                    "key in a message: the weight of its loss; empty: weight, or loss_weight"),
      boolean("drop_system_message", INLAY_ENTRY(format.drop_system_message), "leave system messages out"),
      text("field", INLAY_ENTRY(format.field), "key", "type completion: key of the text"),
      text("field_instruction", INLAY_ENTRY(format.field_instruction), "key", "type alpaca: key of the instruction"),
      text("field_input", INLAY_ENTRY(format.field_input), "key", "type alpaca: key of the input"),
      text("field_output", INLAY_ENTRY(format.field_output), "key", "type alpaca: key of the answer"),
      optional_text("format", INLAY_ENTRY(format.format), "text with {instruction} and {input}",
                    "type alpaca: the prompt; empty: Alpaca's own"),
      optional_text("no_input_format", INLAY_ENTRY(format.no_input_format), "text with {instruction}",
                    "type alpaca: the prompt for rows without an input; empty: format"),
  };
#undef INLAY_ENTRY
  return table;
}

Field datasets(std::string name, std::vector<data::DatasetOptions> TrainOptions::*member, std::string meaning) {
  return {std::move(name),
          "list of {path: FILE, ...}",
          std::move(meaning),
          [member](TrainOptions& o, const YAML::Node& node, const Place& place) {
            std::vector<data::DatasetOptions>& list = o.*member;
            list.clear();
            if (node.IsSequence()) {
              for (const auto& entry : node) list.push_back(read_entry(entry, place));
            } else if (!node.IsNull()) {
              list.push_back(read_entry(node, place));
            }
          },
          [member](const TrainOptions& o, YAML::Emitter& out) {
            out << YAML::BeginSeq;
            for (const data::DatasetOptions& dataset : o.*member) emit_entry(dataset, out);
            out << YAML::EndSeq;
          },
          one_or_list(entry_schema())};
}

}  // namespace inlay::options::option
