#pragma once

#include <span>

#include "backend/cuda/runtime_compiler.h"

namespace inlay::ops::rules {

// The files that a rule's program includes (cuda_text.h), as they were when we were built.
std::span<const backend::cuda::EmbeddedFile> device_files();

}  // namespace inlay::ops::rules
