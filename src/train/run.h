#pragma once

#include "train/console.h"
#include "train/options.h"

namespace inlay::train {

enum class RunEnd : std::uint8_t { finished, interrupted };

// A whole training run: data, model, steps, evaluations, checkpoints, metrics, and the trained model in output_dir.
// With resume it goes on from the latest checkpoint there, bit for bit. An interrupt (Ctrl-C) ends the current step,
// writes a checkpoint and says how to go on.
RunEnd run_training(const TrainOptions& options, bool resume, Console& console);

// Makes Ctrl-C and termination end the run after the current step. Called once by the program.
void install_interrupt_handler();

}  // namespace inlay::train
