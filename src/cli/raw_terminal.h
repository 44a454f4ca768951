#pragma once

#include <string_view>

namespace inlay::cli {

// While it lives, the terminal of standard input hands over every key at once and shows none, and marks what is pasted;
// Ctrl-C and Ctrl-Z stay what they are. Whatever ends the program or stops it, the terminal is as it was before. There
// is one at a time.
class RawTerminal {
 public:
  RawTerminal();
  ~RawTerminal();
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

  // Sees to it that all this still holds. True where somebody else had the terminal since the last call, as a shell has
  // after Ctrl-Z: what stands at the cursor is theirs.
  bool taken_back();
};

}  // namespace inlay::cli
