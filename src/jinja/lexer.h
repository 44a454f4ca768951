#pragma once

#include <string>
#include <vector>

#include "jinja/source.h"
#include "jinja/value.h"

namespace inlay::jinja {

enum class TokenKind { text, print_begin, print_end, tag_begin, tag_end, name, string, integer, real, symbol, end };

struct Token {
  TokenKind kind;
  std::size_t at;    // byte of the source
  std::string text;  // of text and strings: what they stand for; otherwise as it is written
  Value value;       // of numbers

  bool is(TokenKind wanted) const { return kind == wanted; }
  bool is(TokenKind wanted, std::string_view spelling) const { return kind == wanted && text == spelling; }
  bool is_name(std::string_view spelling) const { return is(TokenKind::name, spelling); }
  bool is_symbol(std::string_view spelling) const { return is(TokenKind::symbol, spelling); }
};

// Splits a template into tokens, the last of which is the end. Spaces around tags are taken away as Hugging Face has it
// (trim_blocks and lstrip_blocks of Jinja), comments are gone, and raw blocks have become text.
std::vector<Token> tokenize(const Source& source);

}  // namespace inlay::jinja
