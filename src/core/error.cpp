#include "core/error.h"

namespace inlay {

void assertion_failed(const char* condition, const char* file, int line, std::string_view message) {
  std::string_view path = file;
  if (const auto at = path.rfind("src/"); at != std::string_view::npos) path.remove_prefix(at);
  throw InternalError(fmt::format("{}:{}: {} (expected {})", path, line, message, condition));
}

}  // namespace inlay
