#include <inlay/version.h>

#include <fmt/format.h>

#include "backend/cpu/processor.h"
#include "backend/cuda/context.h"
#include "core/version.h"

namespace inlay {

namespace api {
extern const char* const commit;  // made by cmake/InlayCommit.cmake
}

Version version() {
#ifdef __clang__
  const std::string compiler = fmt::format("Clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  const std::string compiler = fmt::format("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
  return {.number = std::string(version_number()),
          .commit = api::commit,
          .compiler = compiler,
          .cuda = backend::cuda::toolkit_version(),
          .kernels = backend::cpu::processor()};
}

}  // namespace inlay
