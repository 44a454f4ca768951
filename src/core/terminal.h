#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace inlay {

// Whether a person watches this descriptor on something that can rewrite a line (TERM=dumb cannot).
bool is_terminal(int descriptor);

// Whether colours are welcome there: on a terminal, unless NO_COLOR says anything.
bool wants_colour(int descriptor);

// Columns of the terminal behind this descriptor, where there is one that says so.
std::optional<std::size_t> terminal_width(int descriptor);

// Text whose lines are broken at spaces where they are longer than `width`. What goes on stands below the line's last
// column: "  name    meaning" goes on below "meaning".
std::string wrapped(std::string_view text, std::size_t width);

// The first `most` characters of UTF-8 text, and never a part of one.
std::string_view first_characters(std::string_view text, std::size_t most);

// A bar of `width` characters: "━━━━╌╌╌╌".
std::string progress_bar(double share, int width);

}  // namespace inlay
