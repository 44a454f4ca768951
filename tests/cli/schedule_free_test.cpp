#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/small_run.h"

// A run without a schedule: what is evaluated and saved is the average.
namespace inlay::testing {
namespace {

namespace fs = std::filesystem;

TEST(CliScheduleFree, ResumesBitForBitAndSavesWhatItEvaluates) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    for (const std::string adapter : {"", "adapter: lora\nlora_r: 4\nlora_alpha: 8\nlora_target_linear: true\n"}) {
      SCOPED_TRACE(dtype + " " + adapter);
      SmallRun run;
      run.dtype = dtype;
      const std::string keys = "optimizer: schedule_free_adamw\nwarmup_steps: 2\nmax_steps: 6\nsave_steps: 2\n" +
                               run.evaluation() + "eval_steps: 3\n" + adapter;
      const CommandResult whole = run.train(keys);
      ASSERT_EQ(whole.code, 0) << whole.err;
      const std::string result = adapter.empty() ? "model.safetensors" : "adapter_model.safetensors";
      const std::string expected = read_text(run.path(result));
      const double evaluated = run.summary().at("eval_loss");
      for (const char* name : {"checkpoint-4", "checkpoint-6", "summary.json"}) fs::remove_all(run.path(name));
      fs::remove(run.path(result));
      const CommandResult resumed = run.train(keys, {"--resume"});
      ASSERT_EQ(resumed.code, 0) << resumed.err;
      EXPECT_TRUE(read_text(run.path(result)) == expected);

      std::vector<std::string> words = {"eval",    run.path(), "--data",   run.data(), "--json",
                                        "--dtype", dtype,      "--device", "cpu"};
      if (!adapter.empty())
        words = {"eval",      run.folder() / "base",
                 "--adapter", run.path(),
                 "--data",    run.data(),
                 "--json",    "--dtype",
                 dtype,       "--device",
                 "cpu"};
      const CommandResult eval = inlay(words);
      ASSERT_EQ(eval.code, 0) << eval.err;
      EXPECT_NEAR(nlohmann::json::parse(eval.out).at("loss").get<double>(), evaluated, 1e-4 * evaluated);
    }
  }
}

}  // namespace
}  // namespace inlay::testing
