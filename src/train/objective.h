#pragma once

#include "options/train_options.h"
#include "train/engine.h"

namespace inlay::train {

// What the options want to be learned, in what an engine is made with.
void set_objective(const options::TrainOptions& options, EngineOptions& engine);

// "preferences: dpo (sigmoid), beta 0.1"; empty for plain next tokens.
std::string objective_text(const options::TrainOptions& options);

}  // namespace inlay::train
