#pragma once

#include <sys/types.h>
#include <termios.h>

#include <string>
#include <utility>
#include <vector>

namespace inlay::testing {

// What a terminal shows of the bytes it is sent: as much of one as the program makes use of.
class Screen {
 public:
  Screen(std::size_t rows, std::size_t columns) : rows_(rows), columns_(columns), lines_(rows) {}

  void add(const std::string& bytes);
  // All lines up to the last that is not empty, those that have scrolled away included; without spaces at their ends.
  std::string text() const;
  std::pair<std::size_t, std::size_t> cursor() const { return {row_, column_}; }
  void resize(std::size_t rows, std::size_t columns);

 private:
  using Line = std::vector<std::string>;  // a character for each column; empty: the second half of a wide one

  void put(const std::string& character);
  void break_line();
  void control(const std::string& sequence);

  std::size_t rows_, columns_, row_ = 0, column_ = 0;
  std::vector<Line> lines_;
  std::vector<Line> above_;
  std::string pending_;
};

// A program on a terminal of its own, and a person at it.
class PseudoTerminal {
 public:
  explicit PseudoTerminal(const std::vector<std::string>& command, unsigned short rows = 24,
                          unsigned short columns = 80);
  ~PseudoTerminal();
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  void type(const std::string& bytes) const;
  void resize(unsigned short rows, unsigned short columns);
  // Waits until the screen shows it; false where that does not come, within a long time.
  bool shows(const std::string& text);
  // The same, of how often.
  bool shows(const std::string& text, std::size_t count);
  const Screen& screen() const { return screen_; }
  const std::string& bytes() const { return bytes_; }
  termios settings() const;
  pid_t process() const { return process_; }
  // The exit code, or 128 + signal, when it has ended; what it wrote until then is on the screen.
  int wait();

 private:
  bool read();

  int terminal_ = -1;
  pid_t process_ = -1;
  Screen screen_;
  std::string bytes_;
};

}  // namespace inlay::testing
