#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "backend/cpu/isa.h"
#include "core/error.h"
#include "support/paths.h"

namespace {

// For the programs that tests start, where they are built with AddressSanitizer: what leaks is to be ours alone, and
// Open MPI's plugins, which are unloaded in the end, are known only by the libraries further up the stack, which the
// slow unwinder finds.
void know_the_leaks_of_others() {
  const std::string known = (inlay::testing::source_folder() / "tests/support/leaks.supp").string();
  setenv("LSAN_OPTIONS", ("print_suppressions=0:suppressions=" + known).c_str(), 0);
  setenv("ASAN_OPTIONS", "fast_unwind_on_malloc=0", 0);
}

}  // namespace

// As GoogleTest's own, but where INLAY_CPU_ISA asks for what the machine lacks, nothing can be tested, and CTest is
// told so.
int main(int argc, char** argv) {
  constexpr int skipped = 77;
  try {
    inlay::backend::cpu::chosen_isa();
  } catch (const inlay::UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return skipped;
  }
  know_the_leaks_of_others();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
