#pragma once

#include <string>
#include <string_view>

namespace inlay {

// Whether a person watches this descriptor on something that can rewrite a line (TERM=dumb cannot).
bool is_terminal(int descriptor);

// Whether colours are welcome there: on a terminal, unless NO_COLOR says anything.
bool wants_colour(int descriptor);

// The first `most` characters of UTF-8 text, and never a part of one.
std::string_view first_characters(std::string_view text, std::size_t most);

// A bar of `width` characters: "━━━━╌╌╌╌".
std::string progress_bar(double share, int width);

}  // namespace inlay
