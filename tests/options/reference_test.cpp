#include <gtest/gtest.h>

#include <cstdlib>

#include <fmt/format.h>

#include "options/train_options.h"
#include "support/files.h"
#include "support/paths.h"

namespace inlay::testing {
namespace {

// docs/configuration.md is made from the code. INLAY_UPDATE_DOCS=1 writes it.
TEST(OptionsTrain, TheReferenceInDocsIsUpToDate) {
  std::string text =
      "# Configuration\n\nEvery key of the YAML file that `inlay train` and `inlay plan` read, generated from the "
      "code. On "
      "the "
      "command line `--key value`\noverrides the file. Unknown keys are errors.\n\n| key | value | default | meaning "
      "|\n|---|---|---|---|\n";
  const auto add = [&](const std::vector<options::OptionKey>& keys) {
    for (const options::OptionKey& key : keys) {
      text += fmt::format("| `{}` | {} | `{}` | {} |\n", key.name, key.type, key.default_value, key.meaning);
    }
  };
  add(options::option_keys());
  text +=
      "\n## An entry of `datasets`\n\nA file name alone, or a map with these keys (see docs/data.md).\n\n| key "
      "| "
      "value | default | meaning |\n|---|---|---|---|\n";
  add(options::dataset_keys());
  const std::string file = source_folder().string() + "/docs/configuration.md";
  if (std::getenv("INLAY_UPDATE_DOCS") != nullptr) std::ofstream(file) << text;
  EXPECT_EQ(read_text(file), text) << "run the tests once with INLAY_UPDATE_DOCS=1";
}

}  // namespace
}  // namespace inlay::testing
