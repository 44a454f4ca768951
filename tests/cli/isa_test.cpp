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
std::string gradients(const TempFolder& folder, const std::string& name, Isa isa, const std::string& dtype) {
  const std::string model = (source_folder() / "tests/golden/models" / name).string();
  const std::string out = folder / fmt::format("{}-{}-{}.safetensors", name, name_of(isa), dtype);
  std::filesystem::remove(out);
  const CommandResult result = inlay(
      {"grad", model, "--data", model + "/data.jsonl", "--out", out, "--logits", "--device", "cpu", "--dtype", dtype},
      {.environment = {{"INLAY_CPU_ISA", std::string(name_of(isa))}}});
  EXPECT_EQ(result.code, 0) << result.err;
  return out;
}

double distance(const io::SafetensorsFile& a, const io::SafetensorsFile& b, const std::string& name) {
  const auto numbers = [&](const io::SafetensorsFile& file) {
    const ConstView view = file.tensor(name);
    return std::vector<double>(view.as<float>(), view.as<float>() + view.size());
  };
  return relative_error(numbers(a), numbers(b));
}

// One set is one set of bits. Between sets sums run in another order and products are fused or not: a few roundings,
// in fp32. In bf16 such a rounding tips a number that lies between two, which is then off by as much as rounding it is
// anyway: at worst two sets are wrong independently of each other, and √2 times as far apart as each is from what fp32
// says. Norms have few elements, over which that scatters: hence 2.
TEST(CliIsa, SetsAgreeToRoundingAndEachWithItself) {
  for (const char* model : {"llama_llama3_tied", "gpt_oss_balance"}) {
    const TempFolder folder;
    const io::SafetensorsFile exact(gradients(folder, model, Isa::baseline, "fp32"));
    const io::SafetensorsFile rounded(gradients(folder, model, Isa::baseline, "bf16"));
    for (const Isa isa : all_isas) {
      if (isa > best_isa()) continue;
      for (const std::string dtype : {"fp32", "bf16"}) {
        const std::string path = gradients(folder, model, isa, dtype), bits = read_text(path);
        const std::string where = fmt::format("{} in {} with {}", model, dtype, name_of(isa));
        EXPECT_EQ(read_text(gradients(folder, model, isa, dtype)), bits) << where;
        const io::SafetensorsFile ours(path);
        ASSERT_EQ(ours.names(), exact.names());
        for (const std::string& name : ours.names()) {
          if (dtype == "fp32") {
            EXPECT_LE(distance(ours, exact, name), 1e-5) << name << " of " << where;
          } else {
            const double rounding = distance(rounded, exact, name);
            EXPECT_GT(rounding, 1e-5) << name << " of " << where << ": not in bf16";
            EXPECT_LE(distance(ours, rounded, name), 2 * rounding) << name << " of " << where;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace inlay::testing
