#include "support/paths.h"

namespace inlay::testing {

std::filesystem::path source_folder() { return INLAY_SOURCE_DIR; }
std::filesystem::path program() { return INLAY_BINARY; }

}  // namespace inlay::testing
