#pragma once

#include <memory>

#include "parallel/transport.h"

namespace inlay::parallel {

// Loads the library that speaks MPI, from beside the program or from ../lib/inlay, and starts MPI. Called once per
// process. A library that is missing is a UserError that says what to install.
std::unique_ptr<Transport> load_transport();

}  // namespace inlay::parallel
