#include "train/tensorboard.h"

#include <optional>

#include <fmt/format.h>

#include "core/clock.h"
#include "io/event_file.h"

namespace inlay::train {

namespace {

class TensorBoard final : public Board {
 public:
  TensorBoard(const options::TrainOptions& options, BoardRun run)
      : run_(std::move(run)), configuration_(options::to_yaml(options)) {}

  std::string name() const override { return "tensorboard"; }

  void write(const std::vector<BoardRecord>& records) override {
    if (!file_) open();
    for (const BoardRecord& record : records) {
      file_->write(io::scalars_event(record.time, record.step, record.values));
    }
  }

  void end(BoardEnd) override {}

 private:
  void open() {
    const double now = wall_clock();
    file_.emplace(run_.output / "tensorboard", now);
    // What the run did after the checkpoint that it goes on from, it does again.
    if (run_.resumed_after > 0) file_->write(io::start_event(now, run_.resumed_after + 1));
    // Indented, Markdown shows it as it is.
    std::string text = fmt::format("run {}, inlay {}\n\n    ", run_.run, run_.version);
    for (const char c : configuration_) text += c == '\n' ? "\n    " : std::string(1, c);
    file_->write(io::text_event(now, run_.resumed_after, "configuration", text));
  }

  BoardRun run_;
  std::string configuration_;
  std::optional<io::EventFile> file_;
};

}  // namespace

std::unique_ptr<Board> make_tensorboard(const options::TrainOptions& options, const BoardRun& run) {
  return std::make_unique<TensorBoard>(options, run);
}

}  // namespace inlay::train
