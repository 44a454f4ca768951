#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/pair_table.h"
#include "data/tokenizer/piece_cache.h"
#include "data/tokenizer/vocabulary.h"
#include "io/json.h"

namespace inlay::data::tokenizer {

// What encoding needs besides the model. One thread uses it at a time.
struct BpeWorkspace {
  struct Symbol {
    std::int32_t id;
    std::uint32_t rank;            // of the pair with the symbol behind it
    std::uint32_t previous, next;  // in long pieces: the neighbours that are left
  };
  struct Candidate {
    std::uint32_t rank, place;

    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };

  PieceCache cache;
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

// Byte-pair encoding: a piece begins as its characters (bytes, where the pre-tokenizer is byte-level), and the pair
// that was learned first merges first, the leftmost of equals, until none is left. The `model` of a tokenizer.json.
// Immutable, so threads may share it.
class Bpe {
 public:
  static Bpe parse(const io::Json& json, bool byte_level);

  // Spelt as in the file.
  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Appends the tokens of a piece of text, which is not empty.
  void encode(std::string_view piece, BpeWorkspace& workspace, std::vector<std::int32_t>& ids) const;

 private:
  void read_vocabulary(const io::Json& json);
  void read_merges(const io::Json& json);
  void find_characters();
  // The unknown token and the options, which say what becomes of characters that have no token.
  void read_options(const io::Json& json);

  void encode_word(std::string_view word, BpeWorkspace& workspace, std::vector<std::int32_t>& ids) const;
  void encode_anew(std::string_view word, BpeWorkspace& workspace, std::vector<std::int32_t>& ids) const;
  std::optional<std::int32_t> whole(std::string_view word) const;
  void fill_symbols(std::string_view word, std::vector<BpeWorkspace::Symbol>& symbols) const;
  bool fill_bytes(std::string_view character, std::vector<BpeWorkspace::Symbol>& symbols) const;
  void merge_short(std::vector<BpeWorkspace::Symbol>& symbols) const;
  void merge_long(BpeWorkspace& workspace) const;

  Vocabulary vocabulary_;
  PairTable merges_;
  std::vector<std::int32_t> merged_;  // what a pair becomes, by rank
  bool byte_level_ = false;
  bool ignore_merges_ = false, fuse_unknown_ = false;
  // No token joins a character with the ▁ behind it, so text can be cut there first. Models without a pre-tokenizer
  // would have to take whole documents for one word otherwise.
  bool words_part_ = false;
  std::size_t longest_token_ = 0;  // in bytes, as spelt in the file
  std::optional<std::int32_t> unknown_;
  std::array<std::int32_t, 256> first_ids_{};     // tokens of single bytes, or of ASCII characters; -1: none
  std::array<std::int32_t, 256> fallback_ids_{};  // <0x00> to <0xFF>; -1: none, or no byte_fallback
};

}  // namespace inlay::data::tokenizer
