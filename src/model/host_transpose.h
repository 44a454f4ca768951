#pragma once

#include "core/view.h"

namespace inlay::model {

// to [columns, rows], contiguous, = from [rows, columns] turned round; both in host memory, elements of 2 or 4 bytes.
void host_transpose(std::byte* to, ConstView from);

}  // namespace inlay::model
