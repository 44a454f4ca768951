#include <gtest/gtest.h>

#include <cstdio>

#include "backend/cpu/isa.h"
#include "core/error.h"

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
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
