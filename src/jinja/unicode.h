#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/utf8.h"

// Text as Python sees it: strings are UTF-8 here and count in code points there.
namespace inlay::jinja {

bool is_alphabetic(char32_t point);
bool is_decimal(char32_t point);
bool is_digit(char32_t point);
bool is_numeric(char32_t point);
bool is_lower(char32_t point);
bool is_upper(char32_t point);
bool is_title(char32_t point);
bool is_printable(char32_t point);
bool is_space(char32_t point);
bool is_line_end(char32_t point);  // where splitlines() splits

// Looking a character up is as much work as copying so many bytes.
inline constexpr std::size_t unicode_work = 16;

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);       // str.title: a capital after everything that is no letter
std::string capitalize(std::string_view text);  // the first character, the rest in small letters

// All of them expect well-formed text, as every string of a template is.
std::size_t code_points(std::string_view text);
// The character that begins at a byte, and the next one's place.
char32_t decode(std::string_view text, std::size_t& at);
// The character that ends before a byte, and its own place.
char32_t decode_back(std::string_view text, std::size_t& at);
// The byte at which a code point begins; the end of the text where there are not so many.
std::size_t byte_of(std::string_view text, std::size_t point);

}  // namespace inlay::jinja
