#include "data/tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/utf8.h"
#include "data/tokenizer/byte_alphabet.h"

namespace inlay::data::tokenizer {

namespace {

using Symbol = BpeWorkspace::Symbol;

constexpr std::uint32_t never = PairTable::never;
constexpr std::size_t short_symbols = 64;                // up to here looking through all pairs beats keeping a heap
constexpr std::string_view space_mark = "\xE2\x96\x81";  // U+2581, which stands for a space in SentencePiece's models

// Whether a space mark stands anywhere but in a row at the front.
bool has_inner_space_mark(std::string_view text) {
  while (text.starts_with(space_mark)) text.remove_prefix(space_mark.size());
  return text.find(space_mark) != text.npos;
}

}  // namespace

Bpe Bpe::parse(const io::Json& json, bool byte_level) {
  const std::string type = json.find_string("type").value_or("BPE");
  if (type != "BPE") {
    json.fail("type", fmt::format("the model {} is not supported, only BPE is", io::in_quotes(type)));
  }
  Bpe bpe;
  bpe.byte_level_ = byte_level;
  bpe.read_vocabulary(json);
  bpe.read_options(json);
  bpe.read_merges(json);
  bpe.find_characters();
  return bpe;
}

void Bpe::read_vocabulary(const io::Json& json) {
  const io::Json vocab = json.object("vocab");
  const nlohmann::json& entries = vocab.raw();
  vocabulary_ = Vocabulary(entries.size());
  for (const auto& [text, id] : entries.items()) {
    const bool integral = id.is_number_unsigned() && id.get<std::uint64_t>() <= std::uint64_t{Vocabulary::max_id};
    if (!integral) {
      vocab.fail(text, fmt::format("expected an id from 0 to {}, got {}", Vocabulary::max_id, id.dump().substr(0, 40)));
    }
    if (!vocabulary_.add(text, id.get<std::int32_t>())) {
      vocab.fail(text, fmt::format("has the id {}, and so has {}", id.get<std::int32_t>(),
                                   io::in_quotes(*vocabulary_.text(id.get<std::int32_t>()))));
    }
    longest_token_ = std::max(longest_token_, text.size());
  }
  if (vocabulary_.size() == 0) vocab.fail("is empty, expected tokens and their ids");
}

void Bpe::read_options(const io::Json& json) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!json.find_string(key).value_or("").empty()) json.fail(key, "is not supported, expected null");
  }
  if (json.find_number("dropout").value_or(0.0) != 0.0) {
    json.fail("dropout", "is not supported: the same text must give the same tokens; expected null");
  }
  ignore_merges_ = json.find_boolean("ignore_merges").value_or(false);
  fuse_unknown_ = json.find_boolean("fuse_unk").value_or(false);
  if (const auto unknown = json.find_string("unk_token")) {
    unknown_ = vocabulary_.find(*unknown);
    if (!unknown_) json.fail("unk_token", fmt::format("{} is not in model.vocab", io::in_quotes(*unknown)));
  }
  fallback_ids_.fill(-1);
  if (!json.find_boolean("byte_fallback").value_or(false)) return;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    fallback_ids_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
}

void Bpe::read_merges(const io::Json& json) {
  const io::Json list = json.at("merges");
  if (!list.is_array()) list.fail("expected an array of pairs");
  const nlohmann::json& merges = list.raw();
  merges_ = PairTable(merges.size());
  merged_.reserve(merges.size());
  words_part_ = !byte_level_ && !ignore_merges_ && vocabulary_.find(space_mark).has_value();
  std::string merged;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const auto fail = [&](const std::string& message) { list.fail(fmt::format("merge {}: {}", i, message)); };
    // ["a", "b"], or "a b" in older files.
    std::string_view left, right;
    const nlohmann::json& pair = merges[i];
    if (pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string()) {
      left = pair[0].get_ref<const std::string&>();
      right = pair[1].get_ref<const std::string&>();
    } else if (pair.is_string()) {
      const std::string_view both = pair.get_ref<const std::string&>();
      const std::size_t blank = both.find(' ');
      if (blank == both.npos || both.find(' ', blank + 1) != both.npos) {
        fail(fmt::format("expected two tokens with a space between them, got {}", io::in_quotes(both)));
      }
      left = both.substr(0, blank);
      right = both.substr(blank + 1);
    } else {
      fail("expected an array of two tokens");
    }
    merged.assign(left).append(right);
    const auto id_of = [&](std::string_view text) {
      const auto id = vocabulary_.find(text);
      if (!id) fail(fmt::format("{} is not in model.vocab", io::in_quotes(text)));
      return *id;
    };
    merges_.set(id_of(left), id_of(right), static_cast<std::uint32_t>(i));
    merged_.push_back(id_of(merged));
    words_part_ = words_part_ && !has_inner_space_mark(merged);
  }
}

void Bpe::find_characters() {
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const std::string text = byte_level_ ? byte_alphabet()[byte] : std::string(1, static_cast<char>(byte));
    const bool is_character = byte_level_ || byte < 0x80;
    first_ids_[byte] = is_character ? vocabulary_.find(text).value_or(-1) : -1;
  }
}

void Bpe::encode(std::string_view piece, BpeWorkspace& workspace, std::vector<std::int32_t>& ids) const {
  if (!words_part_) return encode_word(piece, workspace, ids);
  while (!piece.empty()) {
    std::size_t end = piece.find(space_mark, 1);
    while (end != piece.npos && piece.substr(0, end).ends_with(space_mark)) end = piece.find(space_mark, end + 1);
    end = std::min(end, piece.size());
    encode_word(piece.substr(0, end), workspace, ids);
    piece.remove_prefix(end);
  }
}

void Bpe::encode_word(std::string_view word, BpeWorkspace& workspace, std::vector<std::int32_t>& ids) const {
  if (word.size() > PieceCache::max_bytes) return encode_anew(word, workspace, ids);
  PieceCache::Entry& entry = workspace.cache.place(word);
  if (PieceCache::holds(entry, word)) {
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return;
  }
  const std::size_t before = ids.size();
  encode_anew(word, workspace, ids);
  const std::span<const std::int32_t> made = std::span(ids).subspan(before);
  if (made.size() <= PieceCache::max_ids) PieceCache::store(entry, word, made);
}

void Bpe::encode_anew(std::string_view word, BpeWorkspace& workspace, std::vector<std::int32_t>& ids) const {
  if (ignore_merges_) {
    if (const auto id = whole(word)) {
      ids.push_back(*id);
      return;
    }
  }
  std::vector<Symbol>& symbols = workspace.symbols;
  symbols.clear();
  fill_symbols(word, symbols);
  if (symbols.size() <= short_symbols) {
    merge_short(symbols);
  } else {
    merge_long(workspace);
  }
  for (const Symbol& symbol : symbols) ids.push_back(symbol.id);
}

std::optional<std::int32_t> Bpe::whole(std::string_view word) const {
  if (word.size() > longest_token_) return std::nullopt;
  if (!byte_level_) return vocabulary_.find(word);
  std::string spelt;
  for (const char c : word) spelt += byte_alphabet()[static_cast<unsigned char>(c)];
  return vocabulary_.find(spelt);
}

void Bpe::fill_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
  bool unknown_waits = false;  // one unknown token for all characters since the last that has a token
  const auto add_unknown = [&] {
    if (std::exchange(unknown_waits, false)) symbols.push_back({*unknown_, never, 0, 0});
  };
  for (std::size_t at = 0; at < word.size();) {
    const auto byte = static_cast<unsigned char>(word[at]);
    const std::size_t bytes = byte_level_ || byte < 0x80 ? 1 : code_point_at(word.data() + at).bytes;
    const std::string_view character = word.substr(at, bytes);
    at += bytes;
    const std::int32_t id = bytes == 1 ? first_ids_[byte] : vocabulary_.find(character).value_or(-1);
    if (id >= 0) {
      add_unknown();
      symbols.push_back({id, never, 0, 0});
    } else if (!fill_bytes(character, symbols) && unknown_) {
      if (!fuse_unknown_) add_unknown();
      unknown_waits = true;
    }
  }
  add_unknown();
}

bool Bpe::fill_bytes(std::string_view character, std::vector<Symbol>& symbols) const {
  const std::string_view spelt =
      byte_level_ ? std::string_view(byte_alphabet()[static_cast<unsigned char>(character[0])]) : character;
  const auto id_of = [&](char c) { return fallback_ids_[static_cast<unsigned char>(c)]; };
  if (std::any_of(spelt.begin(), spelt.end(), [&](char c) { return id_of(c) < 0; })) return false;
  for (const char c : spelt) symbols.push_back({id_of(c), never, 0, 0});
  return true;
}

void Bpe::merge_short(std::vector<Symbol>& symbols) const {
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) symbols[i].rank = merges_.rank(symbols[i].id, symbols[i + 1].id);
  while (symbols.size() > 1) {
    const auto least = std::min_element(symbols.begin(), symbols.end(),
                                        [](const Symbol& a, const Symbol& b) { return a.rank < b.rank; });
    if (least->rank == never) break;
    const auto behind = symbols.erase(least + 1);  // least stays valid: it stands before
    least->id = merged_[least->rank];
    least->rank = behind == symbols.end() ? never : merges_.rank(least->id, behind->id);
    if (least != symbols.begin()) (least - 1)->rank = merges_.rank((least - 1)->id, least->id);
  }
}

void Bpe::merge_long(BpeWorkspace& workspace) const {
  std::vector<Symbol>& symbols = workspace.symbols;
  std::vector<BpeWorkspace::Candidate>& heap = workspace.heap;
  const auto count = static_cast<std::uint32_t>(symbols.size());
  const auto set_rank = [&](std::uint32_t place) {
    Symbol& symbol = symbols[place];
    symbol.rank = symbol.next < count ? merges_.rank(symbol.id, symbols[symbol.next].id) : never;
    return symbol.rank != never;
  };
  heap.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    symbols[i].previous = i - 1;
    symbols[i].next = i + 1;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    if (set_rank(i)) heap.push_back({symbols[i].rank, i});
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](std::uint32_t place) {
    if (!set_rank(place)) return;
    heap.push_back({symbols[place].rank, place});
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  constexpr std::int32_t gone = -1;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const BpeWorkspace::Candidate candidate = heap.back();
    heap.pop_back();
    Symbol& symbol = symbols[candidate.place];
    if (symbol.id == gone || symbol.rank != candidate.rank) continue;  // merged since
    Symbol& right = symbols[symbol.next];
    symbol.id = merged_[symbol.rank];
    symbol.next = right.next;
    right.id = gone;
    if (symbol.next < count) symbols[symbol.next].previous = candidate.place;
    push(candidate.place);
    if (symbol.previous < count) push(symbol.previous);
  }
  std::erase_if(symbols, [](const Symbol& s) { return s.id == gone; });
}

}  // namespace inlay::data::tokenizer
