#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <mutex>
#include <thread>

#include "core/arena.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/utf8.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/decoder.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/post_processor.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "io/paths.h"

namespace inlay::data {

namespace {

using namespace tokenizer;

// The value of a key such as bos_token: a text, or an object with one.
std::optional<std::string> token_text(const io::Json& config, std::string_view key) {
  const auto value = config.find(key);
  if (!value) return std::nullopt;
  return value->is_object() ? value->string("content") : value->as_string();
}

}  // namespace

// What encoding a text needs besides the tokenizer. One thread uses it at a time.
struct EncodingWorkspace {
  BpeWorkspace bpe;
  PreTokens tokens;
  std::string normalized;
  std::vector<Segment> segments, normalized_segments;
};

// Workspaces are large (the cache) and know more with every text, so they are handed on: to the thread that had them
// last, where it asks, because they are still in its processor's cache.
class EncodingWorkspaces {
 public:
  std::unique_ptr<EncodingWorkspace> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<EncodingWorkspace>();
    const auto own = std::ranges::find(free_, std::this_thread::get_id(), &Free::last);
    if (own != free_.end()) std::swap(*own, free_.back());
    auto workspace = std::move(free_.back().workspace);
    free_.pop_back();
    return workspace;
  }
  void give_back(std::unique_ptr<EncodingWorkspace> workspace) {
    const std::lock_guard lock(mutex_);
    free_.push_back({std::this_thread::get_id(), std::move(workspace)});
  }

 private:
  struct Free {
    std::thread::id last;
    std::unique_ptr<EncodingWorkspace> workspace;
  };

  std::mutex mutex_;
  std::vector<Free> free_;
};

struct Tokenizer::Parts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe model;
  AddedTokens added;
  PostProcessor post_processor;
  Decoder decoder;
  std::optional<std::int32_t> bos, eos, pad;
  mutable EncodingWorkspaces workspaces;

  std::optional<std::int32_t> find_id(std::string_view token) const {
    const auto id = added.find_id(token);
    return id ? id : model.vocabulary().find(token);
  }
  std::optional<std::string_view> text(std::int32_t id) const {
    if (const AddedToken* token = added.find(id)) return token->content;
    return model.vocabulary().text(id);
  }

  // What the decoder gets for a token.
  std::optional<std::string_view> decoded(std::int32_t id) const {
    if (const AddedToken* token = added.find(id)) return token->decoded;
    return model.vocabulary().text(id);
  }

  void read_config(const io::Json& config);
  void encode(std::string_view text, EncodingWorkspace& workspace, std::vector<std::int32_t>& ids) const;
  void encode_normalized(std::string_view text, bool at_start, EncodingWorkspace& workspace,
                         std::vector<std::int32_t>& ids) const;
  std::vector<std::int32_t> encode_document(std::string_view text, bool special, EncodingWorkspace& workspace) const;
};

void Tokenizer::Parts::read_config(const io::Json& config) {
  const auto id_of = [&](std::string_view key) -> std::optional<std::int32_t> {
    const auto text = token_text(config, key);
    return text ? find_id(*text) : std::nullopt;
  };
  bos = id_of("bos_token");
  eos = id_of("eos_token");
  pad = id_of("pad_token");  // nothing is padded here, so a name without a token does no harm
  for (const auto& [key, id] : {std::pair{"bos_token", bos}, std::pair{"eos_token", eos}}) {
    if (!id && token_text(config, key)) {
      config.fail(key, fmt::format("{} is not a token of tokenizer.json", io::in_quotes(*token_text(config, key))));
    }
  }
  const auto add_bos = config.find_boolean("add_bos_token"), add_eos = config.find_boolean("add_eos_token");
  if (!add_bos && !add_eos) return;
  post_processor = {};
  if (add_bos.value_or(false) && bos) post_processor.before.push_back(*bos);
  if (add_eos.value_or(false) && eos) post_processor.behind.push_back(*eos);
}

void Tokenizer::Parts::encode(std::string_view text, EncodingWorkspace& workspace,
                              std::vector<std::int32_t>& ids) const {
  added.split(text, false, workspace.segments);
  for (const Segment& segment : workspace.segments) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
      continue;
    }
    const std::string_view normalized =
        normalizer.apply(text.substr(segment.begin, segment.end - segment.begin), workspace.normalized);
    if (normalized.size() > max_text_bytes) user_error("a normalised text of {}", format_bytes(normalized.size()));
    encode_normalized(normalized, segment.begin == 0, workspace, ids);
  }
}

void Tokenizer::Parts::encode_normalized(std::string_view text, bool at_start, EncodingWorkspace& workspace,
                                         std::vector<std::int32_t>& ids) const {
  added.split(text, true, workspace.normalized_segments);
  for (const Segment& segment : workspace.normalized_segments) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
      continue;
    }
    PreTokens& tokens = workspace.tokens;
    pre_tokenizer.apply(text.substr(segment.begin, segment.end - segment.begin), at_start && segment.begin == 0,
                        tokens);
    for (const Piece piece : tokens.pieces) model.encode(text_of(tokens.text, piece), workspace.bpe, ids);
  }
}

std::vector<std::int32_t> Tokenizer::Parts::encode_document(std::string_view text, bool special,
                                                            EncodingWorkspace& workspace) const {
  if (text.size() > max_text_bytes) {
    user_error("a text of {} is too long to encode at once, the limit is {}; cut it into documents",
               format_bytes(text.size()), format_bytes(max_text_bytes));
  }
  std::string repaired;
  if (!is_utf8(text)) {
    repaired = repaired_utf8(text);
    text = repaired;
  }
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 4 + 4);
  if (special) ids = post_processor.before;
  encode(text, workspace, ids);
  if (special) ids.insert(ids.end(), post_processor.behind.begin(), post_processor.behind.end());
  return ids;
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  const bool is_folder = io::is_folder(path);
  const fs::path folder = is_folder ? path : path.parent_path();
  const fs::path file = is_folder ? path / "tokenizer.json" : path;
  if (is_folder && !io::exists(file)) {
    for (const char* other : {"tokenizer.model", "vocab.json", "tiktoken.model"}) {
      if (!io::exists(path / other)) continue;
      user_error(
          "{}: has {} but no tokenizer.json, which Inlay reads. Make one with transformers: python3 -c \"from "
          "transformers import AutoTokenizer as A; A.from_pretrained('{}').save_pretrained('{}')\"",
          path.string(), other, path.string(), path.string());
    }
    user_error("{}: has no tokenizer.json", path.string());
  }
  const fs::path config = folder / "tokenizer_config.json";
  return Tokenizer(io::Json::read(file), io::exists(config) ? std::optional(io::Json::read(config)) : std::nullopt);
}

Tokenizer::Tokenizer(const io::Json& json, const std::optional<io::Json>& config) {
  auto parts = std::make_shared<Parts>();
  json.expect_object();
  if (const auto normalizer = json.find("normalizer")) parts->normalizer = Normalizer::parse(*normalizer);
  if (const auto pre = json.find("pre_tokenizer")) parts->pre_tokenizer = PreTokenizer::parse(*pre);
  parts->model = Bpe::parse(json.object("model"), parts->pre_tokenizer.byte_level());
  parts->added = AddedTokens::parse(json, parts->model.vocabulary(), parts->normalizer);
  if (const auto post = json.find("post_processor")) parts->post_processor = PostProcessor::parse(*post);
  if (const auto decoder = json.find("decoder")) parts->decoder = Decoder::parse(*decoder);
  if (config) parts->read_config(*config);
  parts_ = std::move(parts);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool special) const {
  auto workspace = parts_->workspaces.take();
  auto ids = parts_->encode_document(text, special, *workspace);
  parts_->workspaces.give_back(std::move(workspace));
  return ids;
}

std::vector<std::vector<std::int32_t>> Tokenizer::encode(std::span<const std::string> texts, bool special,
                                                         int threads) const {
  std::vector<std::vector<std::int32_t>> result(texts.size());
  parallel_each(texts.size(), threads, [&](std::size_t i) { result[i] = encode(texts[i], special); });
  return result;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int32_t id : ids) {
    if (skip_special && is_special(id)) continue;
    if (const auto text = parts_->decoded(id)) tokens.emplace_back(*text);
  }
  return parts_->decoder.apply(std::move(tokens));
}

std::optional<std::string> Tokenizer::bytes(std::int32_t id) const {
  if (!parts_->decoder.is_byte_level()) return std::nullopt;
  const std::string text(parts_->decoded(id).value_or(""));
  return spelt_bytes(text).value_or(text);
}

std::int32_t Tokenizer::vocab_size() const {
  return std::max(parts_->model.vocabulary().size(), parts_->added.max_id() + 1);
}

std::optional<std::int32_t> Tokenizer::find_id(std::string_view token) const { return parts_->find_id(token); }

std::optional<std::string> Tokenizer::text(std::int32_t id) const {
  const auto found = parts_->text(id);
  return found ? std::optional(std::string(*found)) : std::nullopt;
}

bool Tokenizer::is_special(std::int32_t id) const {
  const AddedToken* token = parts_->added.find(id);
  return token != nullptr && token->special;
}

std::optional<std::int32_t> Tokenizer::bos() const { return parts_->bos; }
std::optional<std::int32_t> Tokenizer::eos() const { return parts_->eos; }
std::optional<std::int32_t> Tokenizer::pad() const { return parts_->pad; }

}  // namespace inlay::data
