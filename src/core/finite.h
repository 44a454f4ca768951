#pragma once

#include <cstddef>
#include <span>

#include "core/dtype.h"

namespace inlay {

// Whether no number among these is an infinity or a NaN. Whole numbers never are.
bool all_finite(std::span<const std::byte> bytes, DType dtype);

}  // namespace inlay
