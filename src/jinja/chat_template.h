#pragma once

#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "jinja/json_value.h"
#include "jinja/source.h"
#include "jinja/value.h"

namespace inlay::jinja {

struct RenderOptions {
  bool add_generation_prompt = false;
  Value tools, documents;                                // None: there are none
  std::vector<std::pair<std::string, Value>> variables;  // more of them; they go before all others
  std::optional<std::tm> now;                            // for strftime_now(); absent: the local time
  Limits limits;
};

struct RenderedChat {
  std::string text;
  // The bytes of the text, begin and end, that the template's {% generation %} blocks wrote: what the model is to
  // learn.
  std::vector<std::pair<std::size_t, std::size_t>> generation;
  // A generation block stood inside a macro or a set, call or filter block, so that its place is not known.
  bool generation_lost = false;
};

// A model's template for conversations: Jinja, as transformers runs it (its sandbox, its settings for white space, its
// functions and its tojson). It may be hostile: a rendering is bounded in steps, memory and depth. Rendering changes
// nothing, so threads may share a template.
class ChatTemplate {
 public:
  // From a model folder: chat_template.jinja, or chat_template in tokenizer_config.json (one, or several by name); with
  // the special tokens of that folder. Or from a .jinja file, with the special tokens of the folder it is in.
  static ChatTemplate load(const std::filesystem::path& path);
  // Whether a model folder has one.
  static bool is_in(const std::filesystem::path& folder);
  // From text; the name stands where errors name the file.
  ChatTemplate(std::string name, std::string_view text);
  ChatTemplate(ChatTemplate&& other) noexcept;
  ChatTemplate& operator=(ChatTemplate&& other) noexcept;
  ~ChatTemplate();

  // messages: a list of dicts with "role" and what else the template wants. Mistakes of the template, and those that it
  // raises itself about the messages, are TemplateErrors.
  RenderedChat render(const Value& messages, const RenderOptions& options = {}) const;

  // bos_token, eos_token and so on, which the template sees under these names.
  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }
  void set_special_token(const std::string& name, const std::string& token) { special_tokens_[name] = token; }

  // Whether the template marks what the model is to learn with {% generation %} blocks.
  bool marks_generation() const;
  // Whether a text of its code is this word, as a role that it compares with is.
  bool names(std::string_view word) const;

 private:
  struct Parsed;
  ChatTemplate() = default;
  void add(const std::string& name, std::string source_name, std::string_view text);
  const Parsed& chosen(const RenderOptions& options) const;
  void load_templates(const std::filesystem::path& folder);
  void load_special_tokens(const std::filesystem::path& folder);

  std::map<std::string, std::unique_ptr<const Parsed>> templates_;  // by name; most models have but "default"
  std::map<std::string, std::string> special_tokens_;
};

}  // namespace inlay::jinja
