# Source files of ours that programs compiled at run time include, as text in a C++ source: a list of
# backend::cuda::EmbeddedFile, in namespace inlay::ops::rules under the name given.
function(inlay_embed output name)
  set(entries "")
  foreach(path ${ARGN})
    file(READ ${CMAKE_SOURCE_DIR}/src/${path} text)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${path})
    string(APPEND entries "    {\"${path}\", R\"inlay(${text})inlay\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT [[
#include "ops/attention/rules/device_files.h"

namespace inlay::ops::rules {

namespace {
constexpr backend::cuda::EmbeddedFile files[] = {
@entries@};
}

std::span<const backend::cuda::EmbeddedFile> @name@() { return files; }

}  // namespace inlay::ops::rules
]])
endfunction()
