#include "core/version.h"

namespace inlay {

std::string_view version_number() { return INLAY_VERSION; }

}  // namespace inlay
