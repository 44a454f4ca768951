#include "train/board.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "io/http.h"
#include "train/mlflow.h"
#include "train/tensorboard.h"

namespace inlay::train {

BoardRecord board_record(const std::string& metrics_line, double time) {
  const auto line = nlohmann::ordered_json::parse(metrics_line);
  BoardRecord record{.time = time, .step = line.at("step"), .values = {}};
  const bool evaluation = line.contains("eval_loss");
  for (const auto& [key, value] : line.items()) {
    if (!value.is_number() || key == "step" || key == "total_steps") continue;
    std::string name = key == "lr" ? "learning_rate" : key;
    if (evaluation && name.starts_with("eval_")) name = name.substr(5);
    record.values.emplace_back((evaluation ? "eval/" : "train/") + name, value.get<double>());
  }
  return record;
}

// What the run and the board's thread both know.
struct BoardQueue::Shared {
  std::unique_ptr<Board> board;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<BoardRecord> waiting;
  std::vector<std::string> messages;
  std::size_t lost = 0;
  bool failing = false;
  bool ending = false, done = false;
  std::chrono::steady_clock::time_point deadline;  // once it is ending
  BoardEnd how = BoardEnd::failed;
};

BoardQueue::BoardQueue(std::unique_ptr<Board> board) : shared_(std::make_shared<Shared>()) {
  shared_->board = std::move(board);
  std::thread([shared = shared_] { work(shared); }).detach();
}

BoardQueue::~BoardQueue() { end(BoardEnd::failed, std::chrono::seconds(2)); }

void BoardQueue::work(const std::shared_ptr<Shared>& shared) {
  using namespace std::chrono_literals;
  constexpr std::size_t most_at_once = 200;
  auto pause = 1000ms;
  std::unique_lock lock(shared->mutex);
  // Runs without the lock; false: it went wrong, and there is time to try again, after a pause that grows.
  const auto attempt = [&](const auto& job) {
    lock.unlock();
    std::string error;
    try {
      job();
    } catch (const std::exception& failure) {
      error = failure.what();
    }
    lock.lock();
    if (error.empty()) {
      if (shared->failing) shared->messages.push_back(shared->board->name() + ": can be reached again");
      shared->failing = false;
      pause = 1000ms;
      return true;
    }
    if (!shared->failing) {
      shared->messages.push_back(
          fmt::format("{}: {}; the run continues, and will try again", shared->board->name(), error));
    }
    shared->failing = true;
    const auto until = std::chrono::steady_clock::now() + pause;
    pause = std::min<std::chrono::milliseconds>(2 * pause, 60s);
    shared->changed.wait_until(lock, until, [&] { return shared->ending; });
    if (shared->ending) shared->changed.wait_for(lock, 200ms, [] { return false; });
    return false;
  };
  const auto given_up = [&] { return shared->ending && std::chrono::steady_clock::now() > shared->deadline; };
  while (!given_up()) {
    shared->changed.wait(lock, [&] { return shared->ending || !shared->waiting.empty(); });
    if (shared->waiting.empty()) break;
    const auto count = std::min(shared->waiting.size(), most_at_once);
    const std::vector<BoardRecord> batch(shared->waiting.begin(),
                                         shared->waiting.begin() + static_cast<std::ptrdiff_t>(count));
    if (!attempt([&] { shared->board->write(batch); })) continue;
    shared->waiting.erase(shared->waiting.begin(), shared->waiting.begin() + static_cast<std::ptrdiff_t>(count));
  }
  while (!given_up() && !attempt([&] { shared->board->end(shared->how); })) {
  }
  shared->done = true;
  shared->changed.notify_all();
}

void BoardQueue::offer(BoardRecord record) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->waiting.size() >= most_waiting) {
    ++shared_->lost;
    return;
  }
  shared_->waiting.push_back(std::move(record));
  shared_->changed.notify_all();
}

std::vector<std::string> BoardQueue::take_messages() {
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->messages, {});
}

void BoardQueue::end(BoardEnd how, std::chrono::milliseconds patience) {
  if (std::exchange(ended_, true)) return;
  std::unique_lock lock(shared_->mutex);
  shared_->ending = true;
  shared_->how = how;
  shared_->deadline = std::chrono::steady_clock::now() + patience;
  shared_->changed.notify_all();
  shared_->changed.wait_until(lock, shared_->deadline, [&] { return shared_->done; });
  const std::size_t lost = shared_->lost + shared_->waiting.size();
  if (lost > 0) {
    shared_->messages.push_back(fmt::format("{}: {} did not reach it; metrics.jsonl has all of them",
                                            shared_->board->name(),
                                            counted(static_cast<std::int64_t>(lost), "record")));
  }
}

void check_boards(const options::TrainOptions& options) {
  if (options.reports_to("mlflow")) mlflow_server(options);
}

std::vector<std::unique_ptr<BoardQueue>> make_boards(const options::TrainOptions& options, const BoardRun& run) {
  std::vector<std::unique_ptr<BoardQueue>> boards;
  if (options.reports_to("tensorboard")) boards.push_back(std::make_unique<BoardQueue>(make_tensorboard(options, run)));
  if (options.reports_to("mlflow")) boards.push_back(std::make_unique<BoardQueue>(make_mlflow(options, run)));
  return boards;
}

}  // namespace inlay::train
