#include "train/ceilings.h"

#include <gtest/gtest.h>

#include "support/files.h"

namespace inlay::testing {
namespace {

using train::Ceilings;
using train::Remeasure;

// Rates of this machine, kept in a folder of its own.
class TrainCeilings : public ::testing::Test {
 protected:
  Ceilings ask(Remeasure again = Remeasure::no) {
    return train::machine_ceilings(Device::cpu, DType::f32, again,
                                   [this](backend::Message, std::string_view line) { said_.emplace_back(line); });
  }
  std::filesystem::path only_file() const { return *std::filesystem::directory_iterator(folder_ / "inlay"); }

  TempFolder folder_;
  Setting cache_{"XDG_CACHE_HOME", folder_.path().string()};
  std::vector<std::string> said_;
};

TEST_F(TrainCeilings, AreMeasuredOnceAndKept) {
  const Ceilings first = ask();
  for (const double rate : {first.matmul, first.attention, first.memory, first.link, first.host}) EXPECT_GT(rate, 0);
  EXPECT_EQ(first.source, "measured now");
  EXPECT_EQ(said_.size(), 1u);
  const Ceilings second = ask();
  EXPECT_EQ(second.matmul, first.matmul);
  EXPECT_EQ(second.host, first.host);
  EXPECT_EQ(second.source, "measured before, " + only_file().string());
  EXPECT_EQ(said_.size(), 1u);
  EXPECT_EQ(ask(Remeasure::yes).source, "measured now");
  EXPECT_EQ(said_.size(), 2u);
}

TEST_F(TrainCeilings, ADamagedFileIsNotBelieved) {
  const Ceilings kept{.matmul = 1, .fp8 = 6, .attention = 2, .memory = 3, .link = 4, .host = 5, .source = {}};
  const std::filesystem::path file = train::ceilings_file("a machine");
  train::write_ceilings(file, "a machine", kept);
  Ceilings read;
  ASSERT_TRUE(train::read_ceilings(file, "a machine", read));
  EXPECT_EQ(read.link, 4);
  EXPECT_FALSE(train::read_ceilings(file, "another machine", read));
  const std::string whole = read_text(file);
  const auto with = [&](std::string_view from, std::string_view to) {
    return std::string(whole).replace(whole.find(from), from.size(), to);
  };
  for (const std::string& text :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("[]"), with("3.0", "0.0"), with("3.0", "null"),
        with("3.0", "\"3\""), with("\"memory\"", "\"memery\""), with("\"version\": 2", "\"version\": 1")}) {
    std::ofstream(file) << text;
    EXPECT_FALSE(train::read_ceilings(file, "a machine", read)) << text;
  }
  EXPECT_FALSE(train::read_ceilings(folder_ / "missing", "a machine", read));
}

TEST_F(TrainCeilings, WithoutAFolderToWriteThereIsNoError) {
  std::ofstream(folder_ / "inlay") << "a file where the folder should be";
  EXPECT_EQ(ask().source, "measured now");
}

}  // namespace
}  // namespace inlay::testing
