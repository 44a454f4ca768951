#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace inlay {

// What a person sees: one line that is rewritten on a terminal, plain lines elsewhere, nothing but errors when quiet.
// Everything goes to standard error, so that standard output stays for results.
class Console {
 public:
  explicit Console(bool quiet = false);
  // For work that is one step of something larger: its lines pass by, each replaced by the next, and none is printed
  // off a terminal.
  static Console passing(bool quiet);
  ~Console();

  // Whether a person sees a line that is rewritten.
  bool live() const { return terminal_ && !quiet_; }
  // Whether a line takes one row where a person sees it; anywhere else any does.
  bool fits(std::string_view text) const;
  // A line that stays.
  void line(std::string_view text);
  // A line that the next one replaces; off a terminal it is printed only where `important`.
  void status(std::string_view text, bool important = false);
  // The same behind a bar that shows how much is done; off a terminal there is none.
  void status(double share, std::string_view text, bool important = false);

  // "loading weights 1.2 GiB of 16.0 GiB, ETA 12s", at most a few times a second; silent for what ends within a second.
  void progress(std::string_view what, std::uint64_t done, std::uint64_t total);
  // The same for things that are counted: "decomposing weights 12 of 224, ETA 1m 20s".
  void progress_count(std::string_view what, std::int64_t done, std::int64_t total);

 private:
  void clear_status();
  void show_progress(std::string_view what, double done, double total, const std::string& amount);

  bool quiet_, terminal_;
  bool passing_ = false;
  bool status_shown_ = false;
  double progress_began_ = 0, progress_shown_ = 0;
  std::string progress_what_;
};

}  // namespace inlay
