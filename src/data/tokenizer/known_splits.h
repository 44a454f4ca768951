#pragma once

#include <string_view>
#include <vector>

#include "data/tokenizer/piece.h"

namespace inlay::data::tokenizer {

// Cuts the whole text into pieces, as the matches of a regular expression do that leaves nothing between them.
using SplitFunction = void (*)(std::string_view text, std::vector<Piece>& pieces);

// The regular expression inside ByteLevel pre-tokenizers, GPT-2's.
inline constexpr std::string_view gpt2_split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// A handful of regular expressions cut nearly all text that is tokenized today. These are written out by hand, many
// times as fast as matching them; nullptr for any other. What they find is what PCRE2 finds (a test compares), except
// on characters that only one of the two libraries' versions of Unicode has assigned.
SplitFunction known_split(std::string_view regex);

}  // namespace inlay::data::tokenizer
