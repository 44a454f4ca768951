#include "core/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "support/files.h"
#include "support/paths.h"

namespace inlay::testing {
namespace {

TEST(CoreEnvironment, SaysWhatIsSetAndRefusesWhatMeansNothing) {
  {
    const Setting avx2("INLAY_CPU_ISA", "avx2");
    EXPECT_EQ(environment("INLAY_CPU_ISA"), "avx2");
  }
  {
    const Setting empty("INLAY_CPU_ISA", "");
    EXPECT_EQ(environment("INLAY_CPU_ISA"), std::nullopt);
  }
  const Setting other("INLAY_ATTENTION", "fast");
  EXPECT_EQ(user_error_of([] { environment("INLAY_ATTENTION"); }),
            "INLAY_ATTENTION is \"fast\" in the environment, expected one of plain, cudnn, compiled");
}

// docs/environment.md is made from the code. INLAY_UPDATE_DOCS=1 writes it.
TEST(CoreEnvironment, TheTableInDocsIsUpToDate) {
  std::string text =
      "# Environment variables\n\nEverything that Inlay reads from the environment, made from the code. A run's own "
      "settings are in its\n[configuration](configuration.md) instead.\n\n| variable | value | where it is not set | "
      "meaning "
      "|\n|---|---|---|---|\n";
  for (const EnvironmentVariable& variable : environment_variables()) {
    std::string values;
    for (const std::string_view value : variable.values)
      values += fmt::format("{}`{}`", values.empty() ? "" : ", ", value);
    text += fmt::format("| `{}` | {} | {} | {} |\n", variable.name, values.empty() ? "text" : values, variable.unset,
                        variable.meaning);
  }
  const std::string file = source_folder().string() + "/docs/environment.md";
  if (std::getenv("INLAY_UPDATE_DOCS") != nullptr) std::ofstream(file) << text;
  EXPECT_EQ(read_text(file), text) << "run the tests once with INLAY_UPDATE_DOCS=1";
}

TEST(CoreEnvironment, NobodyElseReadsTheEnvironment) {
  for (const char* folder : {"src", "bench"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source_folder() / folder)) {
      if (!entry.is_regular_file() || entry.path().filename() == "environment.cpp") continue;
      EXPECT_EQ(read_text(entry.path()).find("getenv"), std::string::npos) << entry.path();
    }
  }
}

}  // namespace
}  // namespace inlay::testing
