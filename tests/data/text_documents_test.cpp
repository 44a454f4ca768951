#include <gmock/gmock.h>

#include "data/byte_tokenizer.h"
#include "data/text_documents.h"
#include "support/files.h"

namespace inlay::testing {
namespace {

using ::testing::HasSubstr;

// The byte tokenizer's files, with and without a token that begins a text.
data::Tokenizer byte_tokenizer(const TempFolder& folder) {
  folder.write("tokenizer.json", data::ByteTokenizer::tokenizer_json());
  folder.write("tokenizer_config.json", data::ByteTokenizer::tokenizer_config_json());
  return data::Tokenizer::load(folder.path());
}

TEST(DataText, IsCutIntoDocumentsOfOneLength) {
  const TempFolder folder;
  const data::Tokenizer tokenizer = byte_tokenizer(folder);
  const auto documents = data::read_text(folder.write("a.txt", "abcdefgh"), tokenizer, 3, 100);
  std::string joined;
  for (const Document& d : documents) {
    EXPECT_LE(d.input_ids.size(), 3u);
    EXPECT_EQ(d.labels.front(), ignore_label);
    EXPECT_TRUE(std::equal(d.labels.begin() + 1, d.labels.end(), d.input_ids.begin() + 1));
    joined += tokenizer.decode(d.input_ids);
  }
  EXPECT_EQ(joined, "abcdefgh");
  EXPECT_EQ(data::read_text(folder / "a.txt", tokenizer, 3, 2).size(), 2u);
}

TEST(DataText, NothingInItIsSaid) {
  const TempFolder folder;
  const data::Tokenizer tokenizer = byte_tokenizer(folder);
  EXPECT_THAT(user_error_of([&] { data::read_text(folder.write("a.txt", ""), tokenizer, 3, 1); }),
              HasSubstr("a.txt: there is no text in it"));
}

}  // namespace
}  // namespace inlay::testing
