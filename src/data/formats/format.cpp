#include "data/formats/format.h"

#include <array>

#include "core/error.h"
#include "core/text.h"
#include "data/formats/chat_format.h"
#include "data/formats/pair_format.h"
#include "data/formats/preference_format.h"
#include "data/formats/preference_prompt.h"
#include "data/formats/question.h"
#include "data/formats/text_formats.h"
#include "io/file.h"
#include "io/paths.h"
#include "jinja/known_templates.h"
#include "jinja/source.h"

namespace inlay::data {
namespace {

constexpr std::array<std::string_view, 8> types = {"chat_template",     "alpaca",          "completion", "input_output",
                                                   "prompt_completion", "question_answer", "preference", "judged"};

// Conversations are rendered by it; a model without a template has none.
std::unique_ptr<RowFormat> chat_of(FormatOptions options, const Tokenizer& tokenizer,
                                   const std::filesystem::path& model) {
  if (options.chat_template == "tokenizer_default" && !ChatTemplate::is_in(model)) return nullptr;
  options.type = "chat_template";
  options.field_messages = "messages";
  return make_format(options, tokenizer, model);
}

// Names under which people have a question and its answer.
constexpr std::array<std::array<std::string_view, 2>, 9> questions = {{{"question", "answer"},
                                                                       {"question", "response"},
                                                                       {"query", "response"},
                                                                       {"prompt", "response"},
                                                                       {"instruction", "response"},
                                                                       {"problem", "solution"},
                                                                       {"user", "assistant"},
                                                                       {"input", "output"},
                                                                       {"prompt", "answer"}}};

std::string keys_of(const Row& row) {
  std::string keys;
  for (const auto& member : *row.value().map()) {
    keys += (keys.empty() ? "" : ", ") + member.key + (member.value.is_null() ? " (which is null)" : "");
  }
  return keys.empty() ? "nothing" : keys;
}

// "questions and answers (system_prompt, question, response); not read: passage": what was found, under which keys.
std::string described(std::string_view what, std::vector<std::string> read, const Row& row) {
  std::string said = fmt::format("{} ({})", what, join(read, ", "));
  if (const auto unread = unread_around(row, read); !unread.empty()) said += "; not read: " + join(unread, ", ");
  return said;
}

// With what stands around a question, as far as that is read.
std::vector<std::string> keys_of_question(const Row& row, const FormatOptions& o) {
  std::vector<std::string> keys;
  if (const auto system = find_system(row, o)) keys.push_back(system->path());
  if (!earlier_turns(row).empty()) keys.emplace_back("history");
  keys.push_back(o.field_instruction);
  if (const auto input = find_input(row, o, o.field_instruction)) keys.push_back(input->path());
  keys.push_back(o.field_output);
  return keys;
}

// Answers that are judged: as TRL has them, or, where preferences are learned, as LLaMA-Factory has them.
bool is_judged(const Row& row, const FormatOptions& o) {
  if (row.find("completion") && row.find("label")) return true;
  const auto label = find_label(row);
  if (!o.of_preferences() || !label || label->value().boolean() == nullptr) return false;
  return find_messages(row, o) || find_completion(row);
}

bool is_pair(const Row& row, const FormatOptions& o) { return row.find(o.field_chosen) && row.find(o.field_rejected); }

}  // namespace

std::span<const std::string_view> format_types() { return types; }

DetectedFormat detect_format(const FormatOptions& given, const Row& row) {
  DetectedFormat found{given, {}};
  FormatOptions& o = found.options;
  const auto is = [&](const char* type, std::string said) {
    o.type = type;
    found.said = std::move(said);
    return found;
  };
  const auto pair = [&](const char* type, std::string_view prompt, std::string_view answer) {
    o.field_instruction = prompt;
    o.field_output = answer;
    if (std::string_view(type) == "question_answer") {
      return is(type, described("questions and answers", keys_of_question(row, o), row));
    }
    return is(type, described("prompts and completions", {o.field_instruction, o.field_output}, row));
  };
  const auto preferences = [&](const char* type, const char* what, std::vector<std::string> answers) {
    std::vector<std::string> keys = keys_of_prompt(row, o);
    keys.insert(keys.end(), answers.begin(), answers.end());
    return is(type, described(what, std::move(keys), row));
  };
  // A conversation by itself, said where something beside it is left out.
  const auto conversation = [&](const std::string& key, bool always) {
    std::vector<std::string> keys = {key};
    if (const auto system = find_system(row, o)) keys.push_back(system->path());
    const bool say = always || !unread_around(row, keys).empty();
    return is("chat_template", say ? described("conversations", std::move(keys), row) : "");
  };
  const auto pairs = [&] { return preferences("preference", "pairs of answers", {o.field_chosen, o.field_rejected}); };
  const auto names_answer = [&](const std::string& field) {
    return field == o.field_chosen || field == o.field_rejected;
  };
  // Beside a pair the messages that are named are its prompt, unless they are one of the answers.
  if (o.of_preferences() && is_pair(row, o) && !names_answer(o.field_messages)) return pairs();
  if (!o.field_messages.empty() && row.find(o.field_messages)) return conversation(o.field_messages, false);
  if (o.field != "text" && row.find(o.field)) return is("completion", "");
  const bool renamed = o.field_instruction != "instruction" || o.field_output != "output";
  if (renamed && row.find(o.field_instruction) && row.find(o.field_output)) return is("alpaca", "");
  if (row.find("input_ids")) return is("tokens", "");
  if (is_pair(row, o)) return pairs();
  if (is_judged(row, o)) {
    const auto completion = find_completion(row);
    const std::string label = find_label(row)->path();
    return preferences("judged", "judged answers",
                       completion ? std::vector{completion->path(), label} : std::vector{label});
  }
  if (row.find("messages")) return conversation("messages", false);
  if (row.find("conversations")) return conversation("conversations", true);
  if (row.find("prompt") && row.find("completion")) return pair("prompt_completion", "prompt", "completion");
  if (row.find("instruction") && row.find("output")) {
    const auto keys = keys_of_question(row, o);
    return is("alpaca", unread_around(row, keys).empty() ? "" : described("instructions and outputs", keys, row));
  }
  if (row.find("segments")) return is("input_output", "");
  for (const auto& [question, answer] : questions) {
    if (row.find(question) && row.find(answer)) return pair("question_answer", question, answer);
  }
  for (const auto& member : *row.value().map()) {
    if (const auto value = row.find(member.key); value && is_conversation(*value)) {
      o.field_messages = member.key;
      return conversation(member.key, true);
    }
  }
  if (row.find("text")) return is("completion", "");
  constexpr std::array<std::string_view, 6> holders = {"data", "rows", "examples", "records", "items", "train"};
  const bool alone = row.value().map()->size() == 1;
  for (const auto& member : *row.value().map()) {
    if (!alone && std::ranges::find(holders, member.key) == holders.end()) continue;  // a list of the row's own
    const io::Value::List* const list = member.value.list();
    if (list == nullptr || list->empty() || list->front().map() == nullptr) continue;
    row.fail(fmt::format("its {} is a list of rows; expected the rows themselves, as from jq '.{}'", member.key,
                         member.key));
  }
  row.fail(fmt::format(
      "it is not clear what the row is: it has {}. Known are messages or conversations, prompt and completion, "
      "question and answer, instruction and output, chosen and rejected, completion and label, text, segments, "
      "input_ids; otherwise give the dataset a type, and the names of its "
      "keys (field_messages, field_instruction and field_output, field)",
      keys_of(row)));
}

std::optional<std::string> template_text(const std::string& name, const std::filesystem::path& model) {
  constexpr std::string_view fallback = "tokenizer_default_fallback_";
  if (name == "tokenizer_default") return std::nullopt;
  if (name.starts_with(fallback)) {
    if (ChatTemplate::is_in(model)) return std::nullopt;
    return template_text(name.substr(fallback.size()), model);
  }
  if (auto known = jinja::known_template(name)) return known;
  if (!io::is_file(name)) {
    user_error("chat_template: '{}' is neither tokenizer_default, a .jinja file, nor one of {}", name,
               jinja::known_template_names());
  }
  return io::read_file(name, jinja::Source::max_bytes);
}

ChatTemplate load_template(const FormatOptions& options, const Tokenizer& tokenizer,
                           const std::filesystem::path& model) {
  const auto text = template_text(options.chat_template, model);
  if (!text) return ChatTemplate::load(model);
  ChatTemplate chat(options.chat_template, *text);
  const auto name = [&](const char* key, std::optional<std::int32_t> id) {
    if (id) chat.set_special_token(key, tokenizer.text(*id).value_or(""));
  };
  name("bos_token", tokenizer.bos());
  name("eos_token", tokenizer.eos());
  name("pad_token", tokenizer.pad());
  return chat;
}

std::vector<std::int32_t> RowFormat::make_shown(const Row& row) const {
  row.fail("sdft needs rows of a prompt and an answer, as texts: a conversation, or instruction and output");
}

std::unique_ptr<RowFormat> make_format(const FormatOptions& options, const Tokenizer& tokenizer,
                                       const std::filesystem::path& model) {
  if (options.type == "chat_template") {
    auto chat = std::make_shared<const ChatTemplate>(load_template(options, tokenizer, model));
    return std::make_unique<ChatFormat>(options, tokenizer, std::move(chat));
  }
  if (options.type == "alpaca") return std::make_unique<AlpacaFormat>(options, tokenizer);
  if (options.type == "completion") return std::make_unique<CompletionFormat>(options, tokenizer);
  if (options.type == "preference") {
    return std::make_unique<PreferenceFormat>(options, tokenizer, chat_of(options, tokenizer, model));
  }
  if (options.type == "judged") {
    return std::make_unique<JudgedFormat>(options, tokenizer, chat_of(options, tokenizer, model));
  }
  if (options.type == "prompt_completion" || options.type == "question_answer") {
    FormatOptions texts = options;
    const bool raw = options.type == "prompt_completion";
    if (texts.format.empty()) {
      texts.format = raw ? "{instruction}" : "{system}Question: {instruction}\n{input}\nAnswer: ";
      if (!raw && texts.no_input_format.empty()) texts.no_input_format = "{system}Question: {instruction}\nAnswer: ";
    }
    return std::make_unique<PairFormat>(options, chat_of(options, tokenizer, model),
                                        std::make_unique<AlpacaFormat>(texts, tokenizer));
  }
  INLAY_ASSERT(options.type == "input_output", "a dataset of type {}", options.type);
  return std::make_unique<InputOutputFormat>(options, tokenizer);
}

}  // namespace inlay::data
