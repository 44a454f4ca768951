#include "data/tokenizer/added_tokens.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/utf8.h"
#include "data/tokenizer/characters.h"

namespace inlay::data::tokenizer {

namespace {

bool is_space(char32_t c) { return (classes_of(c) & space) != 0; }

std::size_t spaces_at_end(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    const std::size_t last = previous_character(text, end);
    if (!is_space(code_point_at(text.data() + last).value)) break;
    end = last;
  }
  return end;
}

std::size_t spaces_at_start(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const CodePoint c = code_point_at(text.data() + at);
    if (!is_space(c.value)) break;
    at += c.bytes;
  }
  return at;
}

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0 && is_word_character(code_point_at(text.data() + previous_character(text, begin)).value)) return false;
  return end == text.size() || !is_word_character(code_point_at(text.data() + end).value);
}

}  // namespace

std::uint32_t TokenFinder::Node::child(unsigned char byte) const {
  const auto found = std::find_if(children.begin(), children.end(), [&](const auto& c) { return c.first == byte; });
  return found == children.end() ? 0 : found->second;
}

void TokenFinder::add(std::string_view text, std::int32_t id) {
  if (text.empty()) return;
  if (first_bytes_.find(text[0]) == first_bytes_.npos) first_bytes_ += text[0];
  std::uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    std::uint32_t child = nodes_[node].child(byte);
    if (child == 0) {
      child = static_cast<std::uint32_t>(nodes_.size());
      nodes_[node].children.emplace_back(byte, child);
      nodes_.emplace_back();
    }
    node = child;
  }
  if (nodes_[node].id < 0) nodes_[node].id = id;
}

std::optional<TokenFinder::Match> TokenFinder::find(std::string_view text, std::size_t from) const {
  const auto candidate = [&](std::size_t at) {
    return first_bytes_.size() == 1 ? text.find(first_bytes_[0], at) : text.find_first_of(first_bytes_, at);
  };
  for (std::size_t begin = candidate(from); begin != text.npos; begin = candidate(begin + 1)) {
    std::optional<Match> longest;
    std::uint32_t node = 0;
    for (std::size_t at = begin; at < text.size(); ++at) {
      node = nodes_[node].child(static_cast<unsigned char>(text[at]));
      if (node == 0) break;
      if (nodes_[node].id >= 0) longest = Match{begin, at + 1, nodes_[node].id};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

AddedTokens AddedTokens::parse(const io::Json& root, const Vocabulary& vocabulary, const Normalizer& normalizer) {
  AddedTokens result;
  for (const io::Json& json : root.find_array("added_tokens").value_or(std::vector<io::Json>{})) {
    const auto flag = [&](const char* key) { return json.find_boolean(key).value_or(false); };
    AddedToken token{.content = json.expect_object().string("content"),
                     .single_word = flag("single_word"),
                     .lstrip = flag("lstrip"),
                     .rstrip = flag("rstrip"),
                     .normalized = flag("normalized"),
                     .special = flag("special")};
    const auto id = static_cast<std::int32_t>(json.integer("id", {.min = 0, .max = Vocabulary::max_id}));
    if (token.content.empty()) json.fail("content", "is empty, expected the token's text");
    const auto id_there = vocabulary.find(token.content);
    const std::int32_t expected = id_there.value_or(std::max(result.max_id() + 1, vocabulary.count()));
    if (id != expected) {
      json.fail("id", id_there ? fmt::format("is {}, but {} has the id {} in model.vocab", id,
                                             io::in_quotes(token.content), expected)
                               : fmt::format("is {}, but the next free id is {}", id, expected));
    }
    if (!result.ids_.emplace(token.content, id).second) {
      json.fail("content", fmt::format("{} occurs twice among added_tokens", io::in_quotes(token.content)));
    }
    const auto [place, fresh] = result.by_id_.emplace(id, std::move(token));
    if (!fresh) json.fail("id", fmt::format("{} is also the id of {}", id, io::in_quotes(place->second.content)));
  }
  std::string storage;
  for (auto& [id, token] : result.by_id_) {
    token.decoded = token.normalized ? normalizer.apply(token.content, storage) : token.content;
    (token.normalized ? result.normalized_ : result.raw_).add(token.decoded, id);
  }
  return result;
}

const AddedToken* AddedTokens::find(std::int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second;
}

std::optional<std::int32_t> AddedTokens::find_id(std::string_view content) const {
  const auto found = ids_.find(std::string(content));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

void AddedTokens::split(std::string_view text, bool normalized, std::vector<Segment>& segments) const {
  segments.clear();
  const TokenFinder& finder = normalized ? normalized_ : raw_;
  std::size_t done = 0;
  if (!finder.empty()) {
    for (auto match = finder.find(text, 0); match; match = finder.find(text, match->end)) {
      const AddedToken& token = by_id_.at(match->id);
      if (token.single_word && !stands_alone(text, match->begin, match->end)) continue;
      std::size_t begin = match->begin, end = match->end;
      // What the token before has taken is not there any more.
      if (token.lstrip) begin = std::max(spaces_at_end(text.substr(0, begin)), done);
      if (token.rstrip) end += spaces_at_start(text.substr(end));
      if (begin > done) segments.push_back({done, begin});
      segments.push_back({begin, end, match->id});
      done = end;
    }
  }
  if (done < text.size()) segments.push_back({done, text.size()});
}

}  // namespace inlay::data::tokenizer
