#include "jinja/chat_template.h"

#include <algorithm>

#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"
#include "jinja/interpreter.h"
#include "jinja/parser.h"
#include "jinja/unicode.h"

namespace inlay::jinja {

namespace fs = std::filesystem;

struct ChatTemplate::Parsed {
  Parsed(std::string name, std::string_view text) : source(std::move(name), text), body(parse(source)) {}

  Source source;
  Block body;
};

namespace {

constexpr const char* default_name = "default";

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm result{};
  ::localtime_r(&now, &result);
  return result;
}

// A special token is a text, or an object with more than its content.
std::optional<std::string> token_text(const io::Json& config, const std::string& key) {
  const auto found = config.find(key);
  if (!found) return std::nullopt;
  return found->is_object() ? found->string("content") : found->as_string();
}

bool marks_generation(const Block& block);

bool marks_generation(const Statement& statement) {
  const auto& node = statement.node;
  if (std::holds_alternative<Generation>(node)) return true;
  if (const auto* branches = std::get_if<If>(&node)) {
    return std::ranges::any_of(branches->branches, [](const auto& branch) { return marks_generation(branch.body); });
  }
  if (const auto* loop = std::get_if<For>(&node)) {
    return marks_generation(loop->body) || marks_generation(loop->otherwise);
  }
  if (const auto* with = std::get_if<With>(&node)) return marks_generation(with->body);
  if (const auto* macro = std::get_if<std::unique_ptr<MacroDefinition>>(&node)) {
    return marks_generation((*macro)->body);
  }
  return false;
}

bool marks_generation(const Block& block) {
  return std::ranges::any_of(block, [](const Statement& statement) { return marks_generation(statement); });
}

}  // namespace

ChatTemplate::ChatTemplate(std::string name, std::string_view text) { add(default_name, std::move(name), text); }
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

void ChatTemplate::add(const std::string& name, std::string source_name, std::string_view text) {
  templates_.insert_or_assign(name, std::make_unique<const Parsed>(std::move(source_name), text));
}

ChatTemplate ChatTemplate::load(const fs::path& path) {
  ChatTemplate result;
  if (io::is_folder(path)) {
    result.load_templates(path);
    result.load_special_tokens(path);
  } else {
    result.add(default_name, path.string(), io::read_file(path, Source::max_bytes));
    result.load_special_tokens(path.parent_path());
  }
  return result;
}

bool ChatTemplate::is_in(const fs::path& folder) {
  if (io::exists(folder / "chat_template.jinja")) return true;
  const fs::path config = folder / "tokenizer_config.json";
  return io::exists(config) && io::Json::read(config).has("chat_template");
}

void ChatTemplate::load_templates(const fs::path& folder) {
  const fs::path file = folder / "chat_template.jinja", config_file = folder / "tokenizer_config.json";
  if (io::exists(file)) return add(default_name, file.string(), io::read_file(file, Source::max_bytes));
  if (io::exists(config_file)) {
    const io::Json config = io::Json::read(config_file);
    const auto found = config.find("chat_template");
    if (found && found->is_array()) {
      for (const io::Json& entry : found->elements()) {
        const std::string name = entry.string("name");
        add(name, fmt::format("{}: chat_template '{}'", config_file.string(), name), entry.string("template"));
      }
    } else if (found) {
      add(default_name, fmt::format("{}: chat_template", config_file.string()), found->as_string());
    }
  }
  if (templates_.empty()) {
    user_error(
        "{}: no chat template: expected chat_template.jinja there, or chat_template in tokenizer_config.json; "
        "models without instruction tuning have none: write chat_template: chatml, or another one's name or "
        "file (--chat-template of generate, chat and report)",
        folder.string());
  }
}

void ChatTemplate::load_special_tokens(const fs::path& folder) {
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    if (!io::exists(folder / file)) continue;
    const io::Json config = io::Json::read(folder / file);
    for (const char* key :
         {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
      if (const auto token = token_text(config, key)) special_tokens_.try_emplace(key, *token);
    }
  }
}

const ChatTemplate::Parsed& ChatTemplate::chosen(const RenderOptions& options) const {
  const auto for_tools = templates_.find("tool_use");
  if (!options.tools.is_none() && for_tools != templates_.end()) return *for_tools->second;
  if (templates_.size() == 1) return *templates_.begin()->second;
  const auto found = templates_.find(default_name);
  if (found == templates_.end()) {
    user_error("{}: there are several chat templates, and none is called 'default'",
               templates_.begin()->second->source.name());
  }
  return *found->second;
}

bool ChatTemplate::marks_generation() const {
  return std::ranges::any_of(templates_, [](const auto& entry) { return jinja::marks_generation(entry.second->body); });
}

bool ChatTemplate::names(std::string_view word) const {
  return std::ranges::any_of(templates_, [&](const auto& entry) {
    const std::string& text = entry.second->source.text();
    return text.find(fmt::format("'{}'", word)) != text.npos || text.find(fmt::format("\"{}\"", word)) != text.npos;
  });
}

RenderedChat ChatTemplate::render(const Value& messages, const RenderOptions& options) const {
  const Parsed& parsed = chosen(options);
  Variables variables;
  variables.reserve(options.variables.size() + special_tokens_.size() + 4);
  for (const auto& [name, value] : options.variables) variables.insert_or_assign(name, value);
  for (const auto& [name, token] : special_tokens_) variables.try_emplace(name, make_string(nullptr, token));
  variables.try_emplace("messages", messages);
  variables.try_emplace("tools", options.tools);
  variables.try_emplace("documents", options.documents);
  variables.try_emplace("add_generation_prompt", Value::boolean(options.add_generation_prompt));

  Runtime runtime(options.limits, options.now ? *options.now : local_time());
  Output output = Interpreter(parsed.source, runtime, std::move(variables)).run(parsed.body);
  return {std::move(output.text), std::move(output.generation), output.generation_lost};
}

}  // namespace inlay::jinja
