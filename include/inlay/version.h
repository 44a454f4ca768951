#pragma once

#include <string>

#include <inlay/types.h>

namespace inlay {

struct Version {
  std::string number;    // "0.1.0"
  std::string commit;    // of the sources; "unknown" where they were no checkout
  std::string compiler;  // "GCC 12.2.0"
  std::string cuda;      // that it was built with, "13.0"; empty: without
  std::string kernels;   // that were chosen for this processor
};
INLAY_API Version version();

}  // namespace inlay
