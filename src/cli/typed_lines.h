#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

// What a program writes into a pipe, or a person into a terminal that cannot rewrite a line (inlay chat).
namespace inlay::cli {

// Lines of standard input, as they are. Waiting for one ends when somebody wants the program to end.
class TypedLines {
 public:
  // A terminal passes on no more of a line than this.
  static constexpr std::size_t longest = 4095;

  std::optional<std::string> next();
  // Whether a line since the last call was that long, so that its rest is lost.
  bool lost_some() { return std::exchange(lost_, false); }
  void forget() { text_.clear(); }

 private:
  std::string text_;
  bool ended_ = false, lost_ = false;
};

}  // namespace inlay::cli
