# Run at build time: writes the commit that is being built into OUTPUT, where that is not there already.
set(commit "$ENV{INLAY_COMMIT}")  # for sources that are no checkout
if(NOT commit)
  execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
namespace inlay::api {
extern const char* const commit;
const char* const commit = "@commit@";
}  // namespace inlay::api
]])
