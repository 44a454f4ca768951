#include "backend/cuda/runtime_compiler.h"

#include <gtest/gtest.h>

#include "backend/cuda/context.h"
#include "support/files.h"

namespace inlay::backend::cuda {
namespace {

constexpr EmbeddedFile files[] = {{"some/number.h", "constexpr float number = 3.0f;\n"}};

// Compiles without a GPU, into a cache of its own.
class BackendRuntimeCompiler : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!built()) GTEST_SKIP() << "built without CUDA";
  }
  CompiledCode compile() {
    return compile_at_run_time(request_, [this](std::string_view line) { lines_.emplace_back(line); });
  }
  std::filesystem::path only_file() const { return *std::filesystem::directory_iterator(folder_ / "inlay/kernels"); }

  CompileRequest request_ = {.what = "a test",
                             .text =
                                 "#include \"some/number.h\"\n"
                                 "extern \"C\" __global__ void kernel(float* x) { *x = number; }\n",
                             .files = files,
                             .architecture = "sm_90a"};
  testing::TempFolder folder_;
  testing::Setting cache_{"XDG_CACHE_HOME", folder_.path().string()};
  std::vector<std::string> lines_;
};

TEST_F(BackendRuntimeCompiler, KeepsWhatItCompiled) {
  const CompiledCode first = compile(), second = compile();
  ASSERT_FALSE(first.code.empty()) << first.error;
  EXPECT_FALSE(first.from_cache);
  EXPECT_TRUE(second.from_cache);
  EXPECT_EQ(second.code, first.code);
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_EQ(lines_[0], "compiling a test for sm_90a, once");
}

TEST_F(BackendRuntimeCompiler, CompilesAgainWhatIsDamagedOrAnother) {
  const CompiledCode first = compile();
  ASSERT_FALSE(first.code.empty()) << first.error;
  const std::string whole = testing::read_text(only_file());
  std::string flipped = whole;
  flipped.back() ^= 1;
  for (const std::string& content : {whole.substr(0, whole.size() - 1), whole.substr(0, 100), std::string(), flipped}) {
    std::ofstream(only_file(), std::ios::binary) << content;
    const CompiledCode again = compile();
    EXPECT_FALSE(again.from_cache);
    EXPECT_EQ(again.code, first.code);
  }
  request_.definitions = {"SOMETHING"};
  EXPECT_FALSE(compile().from_cache);
}

TEST_F(BackendRuntimeCompiler, RepeatsTheCompilersWords) {
  request_.text = "this is no program";
  const CompiledCode result = compile();
  EXPECT_TRUE(result.code.empty());
  EXPECT_NE(result.error.find("program.cu(1): error"), std::string::npos) << result.error;
  request_.architecture = "sm_1";
  EXPECT_FALSE(compile().error.empty());
}

}  // namespace
}  // namespace inlay::backend::cuda
