#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/vocabulary.h"
#include "io/json.h"

namespace inlay::data::tokenizer {

struct AddedToken {
  std::string content;
  std::string decoded;                  // what a decoder gets: the content as it is found, normalised or not
  bool single_word = false;             // only where no letter or digit stands next to it
  bool lstrip = false, rstrip = false;  // takes the spaces before it, behind it
  bool normalized = false;              // looked for in the normalised text
  bool special = false;                 // not part of what was said: left out of decoded text
};

// Texts to look for, all at once: at every place the longest, from left to right.
class TokenFinder {
 public:
  void add(std::string_view text, std::int32_t id);  // of equal texts the first counts
  bool empty() const { return nodes_.size() == 1; }

  struct Match {
    std::size_t begin, end;
    std::int32_t id;
  };
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  struct Node {
    std::int32_t id = -1;
    std::vector<std::pair<unsigned char, std::uint32_t>> children;

    std::uint32_t child(unsigned char byte) const;  // 0: none
  };

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::string first_bytes_;  // that some text begins with
};

// A stretch of text that is a token already, or that is still to be encoded (id -1).
struct Segment {
  std::size_t begin, end;
  std::int32_t id = -1;
};

// Tokens that are found in text before anything else happens to it: the `added_tokens` of a tokenizer.json. Immutable,
// so threads may share it.
class AddedTokens {
 public:
  // Ids and texts must agree with the vocabulary where both have them, and other ids must follow on, in order.
  // (Hugging Face's tokenizers would pass over the id of a file that says otherwise, and count on.)
  static AddedTokens parse(const io::Json& root, const Vocabulary& vocabulary, const Normalizer& normalizer);

  const AddedToken* find(std::int32_t id) const;
  std::optional<std::int32_t> find_id(std::string_view content) const;
  std::int32_t max_id() const { return by_id_.empty() ? -1 : by_id_.rbegin()->first; }

  // `=`: the text cut at tokens that are looked for as it comes, or normalised.
  void split(std::string_view text, bool normalized, std::vector<Segment>& segments) const;

 private:
  std::map<std::int32_t, AddedToken> by_id_;
  std::unordered_map<std::string, std::int32_t> ids_;
  TokenFinder raw_, normalized_;
};

}  // namespace inlay::data::tokenizer
