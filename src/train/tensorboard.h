#pragma once

#include "train/board.h"

namespace inlay::train {

// Event files in output_dir/tensorboard: `tensorboard --logdir` shows them, and `wandb sync --sync-tensorboard` sends
// them on.
std::unique_ptr<Board> make_tensorboard(const options::TrainOptions& options, const BoardRun& run);

}  // namespace inlay::train
