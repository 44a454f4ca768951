#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>

#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "support/small_run.h"

// What a checkpoint holds, and how it comes to disk.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

// The base model in bf16, as most are.
void make_bf16(const fs::path& file) {
  const fs::path wide = file.string() + ".wide";
  fs::rename(file, wide);
  {
    const io::SafetensorsFile from(wide);
    std::vector<io::TensorSpec> specs;
    for (const std::string& name : from.names()) specs.push_back({name, DType::bf16, from.find(name)->shape});
    io::SafetensorsWriter to(file, specs);
    for (const io::TensorSpec& spec : specs) {
      const ConstView tensor = from.tensor(spec.name);
      ASSERT_EQ(tensor.dtype(), DType::f32);
      std::vector<std::uint16_t> halves(static_cast<std::size_t>(tensor.size()));
      for (std::size_t i = 0; i < halves.size(); ++i) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, static_cast<const float*>(tensor.data()) + i, sizeof(bits));
        halves[i] = static_cast<std::uint16_t>(bits >> 16);
      }
      to.write(spec.name, std::as_bytes(std::span(halves)));
    }
    to.finish();
  }
  fs::remove(wide);
}

class CliCheckpoint : public ::testing::Test {
 protected:
  void remove_end() const {
    for (const char* name : {"checkpoint-4", "summary.json", "model.safetensors"}) fs::remove_all(run.path(name));
  }
  std::string text(const std::string& file) const { return read_text(run.path(file)); }

  SmallRun run;
};

// Beside the model, the moments, and what the model's dtype cannot hold: nothing is there twice. A run that goes on
// from it is the same to the last bit.
TEST_F(CliCheckpoint, HoldsNothingTwiceAndResumesBitForBit) {
  struct Case {
    std::string base, compute;
    bool values, lows;
  };
  const Case cases[] = {{"fp32", "fp32", false, false},
                        {"fp32", "bf16", false, false},  // the model's file has the masters
                        {"bf16", "bf16", false, true},
                        {"bf16", "fp32", true, false}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.base + " computed in " + c.compute);
    if (c.base == "bf16" && c.compute == "bf16") make_bf16(run.folder() / "base/model.safetensors");
    run.dtype = c.compute;
    const std::string more = "max_steps: 4\nsave_steps: 2\n";
    const CommandResult trained = run.train(more);
    ASSERT_EQ(trained.code, 0) << trained.err;
    const io::SafetensorsFile state(run.path("checkpoint-2/optimizer.safetensors"));
    std::map<std::string, std::size_t> kinds;
    for (const std::string& name : state.names()) ++kinds[name.substr(name.rfind('.') + 1)];
    EXPECT_GT(kinds["m"], 0u);
    EXPECT_EQ(kinds["m"], kinds["v"]);
    EXPECT_EQ(kinds["value"], c.values ? kinds["m"] : 0u);
    EXPECT_EQ(kinds["low"], c.lows ? kinds["m"] : 0u);
    const std::string whole = text("model.safetensors"), last = text("checkpoint-4/optimizer.safetensors");
    EXPECT_EQ(text("checkpoint-4/model.safetensors"), whole);
    remove_end();
    const CommandResult resumed = run.train(more, {"--resume"});
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(text("model.safetensors"), whole);
    EXPECT_EQ(text("checkpoint-4/optimizer.safetensors"), last);
    fs::remove_all(run.path());
  }
}

// An earlier version's checkpoint has the values a second time, in optimizer.safetensors: as a bf16 model's is in fp32.
TEST_F(CliCheckpoint, ValuesOfItsOwnAreReadWhereTheFileHasThem) {
  const std::string more = "max_steps: 4\nsave_steps: 2\n";
  ASSERT_EQ(run.train(more).code, 0);
  const std::string whole = text("model.safetensors");
  remove_end();
  const fs::path file = run.path("checkpoint-2/optimizer.safetensors"), now = file.string() + ".now";
  fs::rename(file, now);
  {
    // Ours by the tensors of the model; this one has no fused matrices whose parts would have to be put together.
    const io::SafetensorsFile from(now), model(run.path("checkpoint-2/model.safetensors"));
    std::vector<io::TensorSpec> specs;
    for (const std::string& name : from.names())
      specs.push_back({name, *from.find(name)->dtype, from.find(name)->shape});
    const io::TensorInfo& norm = *model.find("model.norm.weight");
    specs.push_back({"final_norm.value", *norm.dtype, norm.shape});
    ASSERT_NE(from.find("final_norm.m"), nullptr);
    io::SafetensorsWriter to(file, specs, {{"format", "inlay"}});
    for (const std::string& name : from.names()) to.write(name, from.tensor(name));
    to.write("final_norm.value", model.tensor("model.norm.weight"));
    to.finish();
  }
  fs::remove(now);
  fs::remove(run.path("checkpoint-2/checkpoint.json"));
  std::string state = text("checkpoint-2/trainer_state.json");
  state.replace(state.find("\"version\": 2"), 12, "\"version\": 1");
  std::ofstream(run.path("checkpoint-2/trainer_state.json")) << state;
  const CommandResult resumed = run.train(more, {"--resume"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(text("model.safetensors"), whole);
}

// Whether it is written beside the steps or in their place, with enough memory or without, makes no difference.
TEST_F(CliCheckpoint, IsTheSameWrittenBesideTheStepsOrNot) {
  const std::string osft = "osft: {unfreeze_rank_ratio: 0.5, cache: off, basis: weights}\n";
  for (const std::string& method : {std::string(), std::string("freeze: ['model.embed_tokens.weight']\n"), osft}) {
    for (const std::string dtype : {"fp32", "bf16"}) {
      SCOPED_TRACE(dtype + " " + method);
      run.dtype = dtype;
      const std::string more = "max_steps: 4\nsave_steps: 2\n" + method;
      const CommandResult beside = run.train(more);
      ASSERT_EQ(beside.code, 0) << beside.err;
      EXPECT_THAT(beside.err, HasSubstr("written during the next steps"));
      std::map<std::string, std::string> files;
      for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
        files[name] = read_text(run.path("checkpoint-2") / name);
      }
      const double peak = run.summary().at("planned_device_peak_bytes").get<double>();
      fs::remove_all(run.path());
      const double room = std::max(0.001, peak / (1 << 30) + 1e-6);  // and none for a copy
      const CommandResult before = run.train(more + "memory: {device: " + std::to_string(room) + "}\n");
      ASSERT_EQ(before.code, 0) << before.err;
      EXPECT_THAT(before.err, Not(HasSubstr("written during the next steps")));
      for (const auto& [name, content] : files) EXPECT_EQ(read_text(run.path("checkpoint-2") / name), content) << name;
      fs::remove_all(run.path());
    }
  }
}

// The last one, out of the copy, has the numbers of the result, which come from where they were learned.
TEST_F(CliCheckpoint, OfAnAdapterIsWrittenBesideTheSteps) {
  for (const std::string method : {"", "peft_use_dora: true\n", "lora_init: pissa\n", "lora_init: free\n",
                                   "lora_modules_to_save: [lm_head]\n", "load_in_8bit: true\n"}) {
    for (const std::string dtype : {"fp32", "bf16"}) {
      SCOPED_TRACE(dtype + " " + method);
      run.dtype = dtype;
      const std::string calibration =
          method == "lora_init: free\n" ? "osft: {cache: off, calibration: {samples: 4}}\n" : "";
      const CommandResult beside =
          run.train("max_steps: 4\nsave_steps: 2\nadapter: lora\nlora_r: 4\nlora_alpha: 8\nlora_target_linear: true\n" +
                    method + calibration);
      ASSERT_EQ(beside.code, 0) << beside.err;
      EXPECT_THAT(beside.err, HasSubstr("written during the next steps"));
      const char* const name = "adapter_model.safetensors";
      EXPECT_EQ(read_text(run.path("checkpoint-4") / name), read_text(run.path(name)));
      EXPECT_NE(read_text(run.path("checkpoint-2") / name), read_text(run.path(name)));
      fs::remove_all(run.path());
    }
  }
}

TEST_F(CliCheckpoint, AnErrorOfTheWriterEndsTheRun) {
  const CommandResult full = run.train("max_steps: 100000\nsave_steps: 2\n", {}, {.file_bytes = 20000});
  EXPECT_EQ(full.code, 2) << full.err;
  EXPECT_THAT(full.err, HasSubstr("safetensors"));
  EXPECT_TRUE(run.checkpoints().empty());
  EXPECT_FALSE(fs::exists(run.path("summary.json")));
}

}  // namespace
}  // namespace inlay::testing
