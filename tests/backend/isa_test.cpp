#include "backend/cpu/isa.h"

#include <gtest/gtest.h>

#include "core/environment.h"
#include "support/command.h"

namespace inlay::testing {
namespace {

using backend::cpu::all_isas;
using backend::cpu::best_isa;
using backend::cpu::Isa;

TEST(BackendIsa, TheEnvironmentTakesEveryName) {
  for (const Isa isa : all_isas) {
    const Setting setting("INLAY_CPU_ISA", std::string(name_of(isa)));
    EXPECT_EQ(environment("INLAY_CPU_ISA"), name_of(isa));
  }
}

TEST(BackendIsa, WhatTheMachineHasCanBeAskedForAndNothingElse) {
  for (const Isa isa : all_isas) {
    const CommandResult result = inlay({"--version"}, {.environment = {{"INLAY_CPU_ISA", std::string(name_of(isa))}}});
    if (isa <= best_isa()) {
      EXPECT_EQ(result.code, 0) << name_of(isa) << ": " << result.err;
    } else {
      EXPECT_EQ(result.code, 2) << name_of(isa);
      EXPECT_NE(result.err.find(fmt::format("INLAY_CPU_ISA is \"{}\" in the environment, but this machine has at most "
                                            "{}",
                                            name_of(isa), name_of(best_isa()))),
                std::string::npos)
          << result.err;
    }
  }
}

}  // namespace
}  // namespace inlay::testing
