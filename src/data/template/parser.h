#pragma once

#include "data/template/ast.h"
#include "data/template/source.h"

namespace inlay::data::jinja {

// Reads a template. Mistakes are TemplateErrors that point at them.
Block parse(const Source& source);

}  // namespace inlay::data::jinja
