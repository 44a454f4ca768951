#include <gtest/gtest.h>

#include "backend/cpu/isa.h"
#include "io/safetensors.h"
#include "support/command.h"
#include "support/device_tensors.h"
#include "support/paths.h"

namespace inlay::testing {
namespace {

using backend::cpu::all_isas;
using backend::cpu::best_isa;
using backend::cpu::Isa;

// Logits and gradients of a model under one instruction set, as a file.
std::string gradients(const TempFolder& folder, const std::string& name, Isa isa) {
  const std::string model = (source_folder() / "tests/golden/models" / name).string();
  const std::string out = folder / fmt::format("{}-{}.safetensors", name, name_of(isa));
  std::filesystem::remove(out);
  const CommandResult result = inlay(
      {"grad", model, "--data", model + "/data.jsonl", "--out", out, "--logits", "--device", "cpu", "--dtype", "fp32"},
      {.environment = {{"INLAY_CPU_ISA", std::string(name_of(isa))}}});
  EXPECT_EQ(result.code, 0) << result.err;
  return out;
}

// One set is one set of bits. Between sets sums run in another order and products are fused or not: a few roundings,
// in fp32.
TEST(CliIsa, SetsAgreeToRoundingAndEachWithItself) {
  for (const char* model : {"llama_llama3_tied", "gpt_oss_balance"}) {
    const TempFolder folder;
    const std::string first = gradients(folder, model, Isa::baseline);
    const io::SafetensorsFile expected(first);
    for (const Isa isa : all_isas) {
      if (isa > best_isa()) continue;
      const std::string path = gradients(folder, model, isa), bits = read_text(path);
      EXPECT_EQ(read_text(gradients(folder, model, isa)), bits) << model << " with " << name_of(isa);
      const io::SafetensorsFile ours(path);
      ASSERT_EQ(ours.names(), expected.names());
      for (const std::string& name : ours.names()) {
        const auto numbers = [&](const io::SafetensorsFile& file) {
          const ConstView view = file.tensor(name);
          return std::vector<double>(view.as<float>(), view.as<float>() + view.size());
        };
        EXPECT_LE(relative_error(numbers(ours), numbers(expected)), 1e-5)
            << name << " of " << model << " with " << name_of(isa);
      }
    }
  }
}

}  // namespace
}  // namespace inlay::testing
