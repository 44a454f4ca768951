#include "gguf/vocabulary.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/tokenizer/tokenizer.h"
#include "io/paths.h"

namespace inlay::gguf {

namespace {

namespace fs = std::filesystem;

enum TokenType : std::int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

// All steps of a normalizer or pre-tokenizer, in order, out of their sequences.
std::vector<nlohmann::json> steps_of(const nlohmann::json& step) {
  if (!step.is_object()) return {};
  for (const char* key : {"normalizers", "pretokenizers"}) {
    if (!step.contains(key)) continue;
    std::vector<nlohmann::json> all;
    for (const nlohmann::json& inner : step.at(key)) {
      for (nlohmann::json& one : steps_of(inner)) all.push_back(std::move(one));
    }
    return all;
  }
  return {step};
}

std::string type_of(const nlohmann::json& step) { return step.value("type", ""); }

std::string pattern_of(const nlohmann::json& step) {
  if (!step.contains("pattern")) return {};
  const nlohmann::json& pattern = step.at("pattern");
  return pattern.is_object() && pattern.contains("Regex") ? pattern.at("Regex").get<std::string>() : std::string();
}

// How published models cut texts, by the pattern of their tokenizer.json. The names are llama.cpp's; where several of
// them mean the same pattern, one is enough.
std::optional<std::string> known_cut(const nlohmann::json& tokenizer, bool glm) {
  const std::vector<nlohmann::json> steps = steps_of(tokenizer.value("pre_tokenizer", nlohmann::json()));
  std::string pattern;
  bool digits = false, own_regex = false;
  for (const nlohmann::json& step : steps) {
    if (type_of(step) == "Split") pattern += (pattern.empty() ? "" : " and ") + pattern_of(step);
    if (type_of(step) == "Digits") digits = step.value("individual_digits", false);
    if (type_of(step) == "ByteLevel") own_regex = step.value("use_regex", true);
  }
  // Where nothing is merged, it does not matter how texts are cut.
  if (tokenizer.at("model").value("merges", nlohmann::json::array()).empty()) return "gpt-2";
  if (pattern.empty() && own_regex) return digits ? "smollm" : "gpt-2";
  if (own_regex || digits) return std::nullopt;
  const bool whole_words = tokenizer.at("model").value("ignore_merges", false);
  constexpr const char* contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|";
  constexpr const char* rest = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  if (pattern == std::string(contractions) + "\\p{N}{1,3}" + rest) {
    return glm ? "glm4" : whole_words ? "llama-bpe" : "dbrx";
  }
  if (pattern == std::string(contractions) + "\\p{N}" + rest) return "qwen2";
  const auto has = [&](const char* part) { return pattern.find(part) != std::string::npos; };
  if (has("[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+")) {
    if (has("(?i:'s|'t|'re|'ve|'m|'ll|'d)?") && has("\\p{N}{1,3}")) return "gpt-4o";
    if (!has("(?i:") && has("|\\p{N}|")) return "tekken";
  }
  return std::nullopt;
}

class Vocabulary {
 public:
  Vocabulary(Metadata& metadata, const VocabularyOptions& options)
      : metadata_(metadata),
        options_(options),
        file_(io::Json::read(options.folder / "tokenizer.json")),
        tokenizer_(data::Tokenizer::load(options.folder)),
        json_(file_.raw()) {
    const fs::path config = options.folder / "tokenizer_config.json";
    if (io::exists(config)) config_ = io::Json::read(config).raw();
  }

  void describe() {
    const nlohmann::json& model = json_.at("model");
    const bool pieces = model.value("byte_fallback", false);
    metadata_.set("tokenizer.ggml.model", std::string(pieces ? "llama" : "gpt2"));
    metadata_.set("tokenizer.ggml.pre", pieces ? std::string("default") : cut());
    tokens(pieces);
    pieces ? scores() : merges();
    special_ids();
    if (pieces) metadata_.set("tokenizer.ggml.add_space_prefix", adds_space());
    chat_template();
  }

 private:
  std::string cut() const {
    if (options_.pre) return *options_.pre;
    if (const auto name = known_cut(json_, options_.glm)) return *name;
    user_error(
        "{}: pre_tokenizer splits texts in a way whose name in llama.cpp is not known here; give it with --pre "
        "(see the list of tokenizer.ggml.pre in llama.cpp)",
        file_.source());
  }

  void tokens(bool pieces) {
    const auto known = tokenizer_.vocab_size();
    if (known > options_.rows) {
      user_error("{}: has {} tokens, and the model's embedding has {} rows", file_.source(), known, options_.rows);
    }
    std::map<std::int32_t, bool> added;  // special or not
    for (const nlohmann::json& token : json_.value("added_tokens", nlohmann::json::array())) {
      added[token.at("id").get<std::int32_t>()] = token.value("special", false);
    }
    const nlohmann::json& unknown_token = json_.at("model").value("unk_token", nlohmann::json());
    std::vector<std::string> texts;
    std::vector<std::int32_t> types;
    for (std::int32_t id = 0; id < options_.rows; ++id) {
      const auto text = tokenizer_.text(id);
      texts.push_back(text.value_or(fmt::format("[PAD{}]", id)));
      std::int32_t type = text ? normal : unused;
      if (const auto found = added.find(id); text && found != added.end())
        type = found->second ? control : user_defined;
      if (pieces && text && unknown_token.is_string() && *text == unknown_token.get<std::string>()) type = unknown;
      const bool is_byte = text && text->size() == 6 && text->starts_with("<0x") && text->ends_with(">");
      if (pieces && is_byte && type == normal) type = byte;
      types.push_back(type);
    }
    metadata_.set("tokenizer.ggml.tokens", texts);
    metadata_.set("tokenizer.ggml.token_type", types);
  }

  // "a b", or in newer files ["a", "b"], whose parts may have spaces: llama.cpp expects them under another character.
  std::vector<std::pair<std::string, std::string>> merge_pairs() const {
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const nlohmann::json& merge : json_.at("model").value("merges", nlohmann::json::array())) {
      if (merge.is_array()) {
        pairs.emplace_back(merge.at(0).get<std::string>(), merge.at(1).get<std::string>());
      } else {
        const auto text = merge.get<std::string>();
        const std::size_t space = text.find(' ');
        pairs.emplace_back(text.substr(0, space), text.substr(space + 1));
      }
    }
    return pairs;
  }

  void merges() {
    std::vector<std::string> lines;
    const auto spelt = [](const std::string& part) {
      std::string result;
      for (const char c : part) c == ' ' ? result += "\xc4\xa0" : result += c;  // U+0120
      return result;
    };
    for (const auto& [a, b] : merge_pairs()) lines.push_back(spelt(a) + " " + spelt(b));
    metadata_.set("tokenizer.ggml.merges", lines);
  }

  // Pieces are put together in the order of their scores there, and in that of merges here: the earliest merge that
  // makes a piece is its score.
  void scores() {
    std::unordered_map<std::string, float> ranks;
    float rank = 0;
    for (const auto& [a, b] : merge_pairs()) ranks.try_emplace(a + b, -rank), rank += 1;
    std::vector<float> scores;
    for (std::int32_t id = 0; id < options_.rows; ++id) {
      const auto text = tokenizer_.text(id);
      const auto found = text ? ranks.find(*text) : ranks.end();
      scores.push_back(found == ranks.end() ? -rank : found->second);
    }
    metadata_.set("tokenizer.ggml.scores", scores);
  }

  std::optional<std::int32_t> token_id(const char* name) const {
    const std::string key = std::string(name) + "_token";
    if (config_.contains(key) && !config_.at(key).is_null()) {
      const nlohmann::json& value = config_.at(key);
      const auto text = value.is_object() ? value.value("content", "") : value.get<std::string>();
      if (const auto id = tokenizer_.find_id(text)) return id;
    }
    for (const char* file : {"config.json", "generation_config.json"}) {
      const fs::path path = options_.folder / file;
      if (!io::exists(path)) continue;
      const auto value = io::Json::read(path).find(key + "_id");
      if (!value) continue;
      const io::Json one = value->is_array() ? value->elements().at(0) : *value;
      return static_cast<std::int32_t>(one.as_integer({.min = 0, .max = options_.rows - 1}));
    }
    return std::nullopt;
  }

  void special_ids() {
    const auto bos = token_id("bos"), eos = token_id("eos");
    for (const auto& [name, key] : {std::pair("bos", "bos"), std::pair("eos", "eos"), std::pair("unk", "unknown"),
                                    std::pair("sep", "seperator"), std::pair("pad", "padding")}) {
      const auto id = token_id(name);
      if (id) metadata_.set(fmt::format("tokenizer.ggml.{}_token_id", key), static_cast<std::uint32_t>(*id));
    }
    // What stands around a text, as this tokenizer puts it there.
    const std::vector<std::int32_t> plain = tokenizer_.encode("a", false), around = tokenizer_.encode("a", true);
    metadata_.set("tokenizer.ggml.add_bos_token",
                  bos && around.size() > plain.size() && !around.empty() && around.front() == *bos);
    metadata_.set("tokenizer.ggml.add_eos_token",
                  eos && around.size() > plain.size() && !around.empty() && around.back() == *eos);
  }

  bool adds_space() const {
    for (const nlohmann::json& step : steps_of(json_.value("normalizer", nlohmann::json()))) {
      if (type_of(step) == "Prepend") return true;
    }
    for (const nlohmann::json& step : steps_of(json_.value("pre_tokenizer", nlohmann::json()))) {
      if (type_of(step) == "Metaspace") {
        return step.contains("prepend_scheme") ? step.at("prepend_scheme") != "never"
                                               : step.value("add_prefix_space", true);
      }
    }
    return false;
  }

  void chat_template() {
    constexpr std::size_t most = std::size_t{4} << 20;
    const fs::path file = options_.folder / "chat_template.jinja";
    if (io::exists(file)) {
      metadata_.set("tokenizer.chat_template", io::read_file(file, most));
      return;
    }
    const nlohmann::json value = config_.value("chat_template", nlohmann::json());
    if (value.is_string()) metadata_.set("tokenizer.chat_template", value.get<std::string>());
    if (!value.is_array()) return;
    std::vector<std::string> names;
    for (const nlohmann::json& one : value) {
      const std::string name = one.value("name", ""), text = one.value("template", "");
      if (name == "default") {
        metadata_.set("tokenizer.chat_template", text);
      } else {
        metadata_.set("tokenizer.chat_template." + name, text);
        names.push_back(name);
      }
    }
    if (!names.empty()) metadata_.set("tokenizer.chat_templates", names);
  }

  Metadata& metadata_;
  const VocabularyOptions& options_;
  io::Json file_;
  data::Tokenizer tokenizer_;
  const nlohmann::json& json_;
  nlohmann::json config_ = nlohmann::json::object();
};

}  // namespace

void describe_vocabulary(Metadata& metadata, const VocabularyOptions& options) {
  Vocabulary(metadata, options).describe();
}

}  // namespace inlay::gguf
