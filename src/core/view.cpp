#include "core/view.h"

namespace inlay {

std::string Shape::str() const {
  std::string text = "[";
  for (int axis = 0; axis < rank_; ++axis) text += (axis > 0 ? ", " : "") + std::to_string((*this)[axis]);
  return text + "]";
}

}  // namespace inlay
