#include "options/dataset_fields.h"

#include "core/problems.h"
#include "core/text.h"
#include "options/foreign.h"

namespace inlay::options::option {

namespace {

// A map from names that a template has to several of the data.
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

// A word out of a few, or none.
template <class Member>
Field optional_word(std::string name, Member member, std::vector<std::string> words, std::string meaning) {
  words.insert(words.begin(), "");
  Field field = word(std::move(name), member, words, std::move(meaning));
  field.type = "one of " + join(std::span(words).subspan(1), ", ");
  return field;
}

TrainOptions with_dataset(const data::DatasetOptions& dataset) {
  TrainOptions options;
  options.datasets = {dataset};
  return options;
}

// A key of an entry and its value.
struct EntryKey {
  std::string name;
  YAML::Node value;
  Place place;  // its key is that of the list
};
using EntryKeys = std::vector<EntryKey>;

std::string emitted(const Field& field, const TrainOptions& options) {
  YAML::Emitter out;
  field.emit(options, out);
  return out.c_str();
}

// What is said of a key of an entry that is not ours.
void read_foreign(const std::string& key, const YAML::Node& value, const Place& place, EntryKeys& keys,
                  std::vector<std::string>& notes) {
  const auto meaning = meaning_in_dataset(key, value);
  if (!meaning) {
    std::vector<std::string_view> known;
    for (const Field& f : dataset_fields()) known.push_back(f.name);
    const std::string guess = nearest(key, known);
    user_error("{}: {}: '{}' is not a known key of an entry{}", place.where(), place.key, key,
               guess.empty() ? "" : "; did you mean " + guess + "?");
  }
  if (meaning->kind == Meaning::Kind::refused) {
    user_error("{}: {}.{}: {}", place.where(), place.key, key, meaning->why);
  }
  if (meaning->kind == Meaning::Kind::unneeded) {
    notes.push_back(fmt::format("{}: {}.{} is not needed here: {}", place.where(), place.key, key, meaning->why));
  }
  for (const auto& [name, text] : meaning->keys) keys.push_back({name, YAML::Load(text), place});
}

// The keys of an entry: ours, with those of other programs translated. `type` may be a map of further ones, as
// axolotl's.
EntryKeys keys_of(const YAML::Node& entry, const Place& place, Problems& problems, std::vector<std::string>& notes) {
  EntryKeys keys, translated;
  std::set<std::string> seen;
  for (const auto& item : entry) {
    const std::string key = item.first.Scalar();
    const Place here = place.within(item.first, place.key);
    problems.gather([&] {
      if (!seen.insert(key).second) here.fail("'{}' is given twice", key);
      if (is_absent(item.second)) return;
      if (key == "type" && item.second.IsMap()) {
        const EntryKeys more = keys_of(item.second, here, problems, notes);
        keys.insert(keys.end(), more.begin(), more.end());
        return;
      }
      if (find_dataset_field(key) == nullptr || meaning_in_dataset(key, item.second)) {
        return read_foreign(key, item.second, here, translated, notes);
      }
      keys.push_back({key, item.second, here});
    });
  }
  for (EntryKey& key : translated) {
    const bool given = std::ranges::any_of(keys, [&](const EntryKey& k) { return k.name == key.name; });
    if (!given) keys.push_back(std::move(key));
  }
  return keys;
}

data::DatasetOptions read_entry(const YAML::Node& entry, const Place& place, std::vector<std::string>& notes) {
  TrainOptions options = with_dataset({});
  if (entry.IsScalar() && !entry.Scalar().empty()) {
    options.datasets[0].path = entry.Scalar();
    return options.datasets[0];
  }
  if (!entry.IsMap() || !entry["path"]) place.fail("each entry is a file name or {{path: FILE, ...}}");
  Problems problems;
  for (const EntryKey& key : keys_of(entry, place, problems, notes)) {
    problems.gather([&] {
      Place here = key.place;
      here.key += "." + key.name;
      find_dataset_field(key.name)->set(options, key.value, here);
    });
  }
  problems.raise();
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
  [](auto& o) -> auto& { return o.datasets.front().path; }  // NOLINT(bugprone-macro-parentheses)
  static const std::vector<Field> table = {
      text("path", INLAY_ENTRY(path), "file, folder, pattern or name",
           "a .jsonl, .json, .parquet, .csv, .tsv or .txt file (all but .parquet also compressed, .gz or .zst), a "
           "folder or pattern of them, or the name of a dataset on the Hugging Face hub (org/name); required"),
      optional_text("name", INLAY_ENTRY(subset), "name", "subset of a dataset on the hub"),
      optional_text("split", INLAY_ENTRY(split), "name, name+name, name[:N%] or name[A:B]",
                    "split of a folder or of a dataset on the hub, and which of its rows; empty: train"),
      optional_texts("data_files", INLAY_ENTRY(data_files), "list of files",
                     "files below path, or patterns of them; also with path: json, csv, parquet or text"),
      optional_word("ds_type", INLAY_ENTRY(ds_type), {"json", "csv", "parquet", "text"},
                    "type of files whose names do not show it"),
      optional_text("revision", INLAY_ENTRY(revision), "branch, tag or commit",
                    "which version of a dataset on the hub"),
      word("type", INLAY_ENTRY(format.type),
           {"auto", "chat_template", "alpaca", "completion", "input_output", "prompt_completion", "question_answer",
            "tokens", "preference", "judged"},
           "what its rows are (docs/data.md); auto: decided by the first row"),
      text("logprobs_field", INLAY_ENTRY(format.logprobs_field), "name",
           "kd_trainer without kd_teacher: key of the teacher's log-probabilities in a row"),
      number("weight", INLAY_ENTRY(weight), 0.0001, 1000,
             "how often its documents occur in an epoch; a fraction takes that share of them"),
      text("chat_template", INLAY_ENTRY(format.chat_template), "tokenizer_default, a name or a .jinja file",
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
      text("field_instruction", INLAY_ENTRY(format.field_instruction), "key",
           "key of the instruction, prompt or question"),
      text("field_input", INLAY_ENTRY(format.field_input), "key", "type alpaca: key of the input"),
      text("field_output", INLAY_ENTRY(format.field_output), "key", "key of the answer or completion"),
      text("field_chosen", INLAY_ENTRY(format.field_chosen), "key", "type preference: key of the preferred answer"),
      text("field_rejected", INLAY_ENTRY(format.field_rejected), "key", "type preference: key of the other answer"),
      optional_text("format", INLAY_ENTRY(format.format), "text with {instruction}, {input} and {system}",
                    "type alpaca: the prompt; empty: Alpaca's own"),
      optional_text("no_input_format", INLAY_ENTRY(format.no_input_format), "text with {instruction}",
                    "type alpaca: the prompt for rows without an input; empty: format"),
  };
#undef INLAY_ENTRY
  return table;
}

const Field* find_dataset_field(const std::string& name) {
  for (const Field& field : dataset_fields()) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

Field datasets(std::string name, std::vector<data::DatasetOptions> TrainOptions::*member, std::string meaning) {
  return {std::move(name),
          "list of {path: FILE, ...}",
          std::move(meaning),
          [member](TrainOptions& o, const YAML::Node& node, const Place& place) {
            std::vector<data::DatasetOptions>& list = o.*member;
            list.clear();
            Problems problems;
            const auto read = [&](const YAML::Node& entry) {
              problems.gather([&] { list.push_back(read_entry(entry, place, o.notes)); });
            };
            if (!node.IsSequence()) {
              read(node);
            } else {
              for (const auto& entry : node) read(entry);
            }
            problems.raise();
          },
          [member](const TrainOptions& o, YAML::Emitter& out) {
            out << YAML::BeginSeq;
            for (const data::DatasetOptions& dataset : o.*member) emit_entry(dataset, out);
            out << YAML::EndSeq;
          },
          one_or_list(entry_schema())};
}

}  // namespace inlay::options::option
