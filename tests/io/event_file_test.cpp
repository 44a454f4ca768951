#include "io/event_file.h"

#include <gtest/gtest.h>

#include "support/files.h"

namespace inlay::io {
namespace {

using inlay::testing::read_text;
using inlay::testing::source_folder;
using inlay::testing::TempFolder;

// From RFC 3720, B.4.
TEST(IoEventFile, ChecksumsAreCastagnolis) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(""), 0u);
}

// tests/golden/make_tensorboard_fixture.py wrote the same events with TensorBoard's own code.
TEST(IoEventFile, BytesAreThoseOfTensorBoardsOwnWriter) {
  const double time = 1794830617.25;
  std::string ours;
  for (const std::string& event :
       {version_event(time), start_event(time, 13), text_event(time, 0, "configuration", "run a\n\n    seed: 42\n"),
        scalars_event(time, 0, {{"eval/loss", 2.5}, {"eval/accuracy", 0}}),
        scalars_event(time + 1, 1, {{"train/loss", 2.25}, {"train/learning_rate", 1e-5}}),
        scalars_event(time + 2, 300, {{"train/tokens_total", 123456789.0}}),
        scalars_event(time + 3, 5000000000, {{std::string(200, 'x'), -1.0}})}) {
    ours += tf_record(event);
  }
  EXPECT_EQ(ours, read_text(source_folder() / "tests/golden/tensorboard/events.out.tfevents.fixture"));
}

TEST(IoEventFile, AFileIsNewAndBeginsWithTheVersion) {
  const TempFolder folder;
  EventFile first(folder / "a/b", 12.5), second(folder / "a/b", 12.5);
  first.write(scalars_event(12.5, 1, {{"train/loss", 1}}));
  std::vector<std::string> texts;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "a/b")) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("events.out.tfevents.0000000012."));
    texts.push_back(read_text(entry.path()));
  }
  ASSERT_EQ(texts.size(), 2u);
  std::sort(texts.begin(), texts.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  EXPECT_EQ(texts[0], tf_record(version_event(12.5)));
  EXPECT_EQ(texts[1], texts[0] + tf_record(scalars_event(12.5, 1, {{"train/loss", 1}})));
}

}  // namespace
}  // namespace inlay::io
