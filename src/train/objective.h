#pragma once

#include "options/train_options.h"
#include "train/engine.h"

namespace inlay::train {

// UserError where the options name a teacher that the model cannot learn from: both must have the same vocabulary.
void check_teacher(const options::TrainOptions& options, const model::ModelConfig& config);

// What the options want to be learned, in what an engine is made with.
void set_objective(const options::TrainOptions& options, EngineOptions& engine);

// "preferences: dpo (sigmoid), beta 0.1"; empty for plain next tokens.
std::string objective_text(const options::TrainOptions& options);

}  // namespace inlay::train
