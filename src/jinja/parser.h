#pragma once

#include "jinja/ast.h"
#include "jinja/source.h"

namespace inlay::jinja {

// Reads a template. Mistakes are TemplateErrors that point at them.
Block parse(const Source& source);

}  // namespace inlay::jinja
