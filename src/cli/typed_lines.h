#pragma once

#include <termios.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

// What a person types into a terminal, or a program writes into a pipe, line by line (inlay chat).
namespace inlay::cli {

// Keeps a terminal from showing what is typed while it lives: it would stand within the answer that is printed.
class SilentTerminal {
 public:
  SilentTerminal();
  ~SilentTerminal();
  SilentTerminal(const SilentTerminal&) = delete;
  SilentTerminal& operator=(const SilentTerminal&) = delete;

 private:
  termios before_{};
  bool silenced_;
};

// Has a terminal say where pasted text begins and ends while it lives, and not show these marks as it does other
// control characters.
class MarkedPastes {
 public:
  explicit MarkedPastes(bool person);
  ~MarkedPastes();
  MarkedPastes(const MarkedPastes&) = delete;
  MarkedPastes& operator=(const MarkedPastes&) = delete;

  static constexpr std::string_view begin = "\033[200~", end = "\033[201~";

 private:
  termios before_{};
  bool marked_;
};

// Lines of standard input; what was pasted into a terminal is one, of several. Waiting for one ends when somebody wants
// the program to end.
class TypedLines {
 public:
  // A terminal passes on no more of a line than this.
  static constexpr std::size_t longest = 4095;

  std::optional<std::string> next();
  // Whether a line since the last call was that long, so that its rest is lost.
  bool lost_some() { return std::exchange(lost_, false); }

  // Of a terminal: takes what was typed while nobody asked, whether its line is finished or not.
  void take_what_is_there();
  // Whether a line is there that nobody has asked for yet, and this line.
  bool has_line() const { return text_.find('\n') != std::string::npos; }
  std::string_view upcoming() const { return std::string_view(text_).substr(0, text_.find('\n')); }
  // What was taken of a line, or of what is being pasted, where its end is still to come. It is not seen: its end alone
  // will be, as it is typed.
  std::string begun() const;
  void forget() { text_.clear(), taken_ = 0; }

 private:
  std::optional<std::string> next_typed();

  std::string text_;
  std::size_t taken_ = 0;  // so much of it was taken whether finished or not
  bool ended_ = false, lost_ = false;
};

}  // namespace inlay::cli
