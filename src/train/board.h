#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "options/train_options.h"

// Boards that people watch runs on. What a board does, it does on a thread of its own: one that is slow or gone costs a
// run nothing but a line that says so.
namespace inlay::train {

// What a step or an evaluation found, under the names that boards show.
struct BoardRecord {
  double time = 0;  // seconds since 1970
  std::int64_t step = 0;
  std::vector<std::pair<std::string, double>> values;
};
// Of a line of metrics.jsonl: "train/loss", "eval/accuracy".
BoardRecord board_record(const std::string& metrics_line, double time);

enum class BoardEnd : std::uint8_t { finished, stopped, failed };

// One board. All but name() is called from one thread, and may take its time; what goes wrong is an exception, and is
// tried again.
class Board {
 public:
  virtual ~Board() = default;
  virtual std::string name() const = 0;
  virtual void write(const std::vector<BoardRecord>& records) = 0;
  virtual void end(BoardEnd how) = 0;
};

// Hands records to a board.
class BoardQueue {
 public:
  static constexpr std::size_t most_waiting = 10000;  // records; what comes beyond it is left out

  explicit BoardQueue(std::unique_ptr<Board> board);
  // Without end(): as failed.
  ~BoardQueue();
  BoardQueue(const BoardQueue&) = delete;
  BoardQueue& operator=(const BoardQueue&) = delete;

  // Never waits.
  void offer(BoardRecord record);
  // What a person should know, once each: that the board cannot be reached, that it can again.
  std::vector<std::string> take_messages();
  // Gives it so long to take what is waiting; then whatever it has not taken is lost.
  void end(BoardEnd how, std::chrono::milliseconds patience = std::chrono::seconds(10));

 private:
  struct Shared;
  static void work(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;  // the thread may outlive this, in a request that does not end
  bool ended_ = false;
};

// What a board must know of its run.
struct BoardRun {
  std::filesystem::path output;
  std::string run, version;        // as in metrics.jsonl
  std::int64_t resumed_after = 0;  // steps; 0: it begins
};
// UserError where an option of theirs cannot be: before anything else is done.
void check_boards(const options::TrainOptions& options);
std::vector<std::unique_ptr<BoardQueue>> make_boards(const options::TrainOptions& options, const BoardRun& run);

}  // namespace inlay::train
