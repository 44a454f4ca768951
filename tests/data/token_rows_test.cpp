#include "data/token_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/philox.h"
#include "data/dataset.h"
#include "data/documents.h"
#include "support/files.h"

namespace inlay::data {
namespace {

using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<Document> read_file(const std::filesystem::path& path, std::int64_t vocab_size,
                                std::function<void(std::uint64_t, std::uint64_t)> progress = {}) {
  Documents documents;
  documents.add(read_dataset({.path = path.string(), .format = {.type = "tokens"}},
                             {.vocab = vocab_size, .progress = std::move(progress)}));
  return documents.read_all();
}

std::vector<Document> read_rows(std::string_view text, std::int64_t vocab_size = 100) {
  const TempFolder folder;
  return read_file(folder.write("d.jsonl", text), vocab_size);
}

// The error without the folder: "d.jsonl:1: ...".
std::string error_of_rows(std::string_view text, std::int64_t vocab_size = 100) {
  const TempFolder folder;
  const auto path = folder.write("d.jsonl", text);
  const std::string message = user_error_of([&] { read_file(path, vocab_size); });
  const std::string prefix = folder.path().string() + "/";
  return message.starts_with(prefix) ? message.substr(prefix.size()) : message;
}

TEST(DataTokenRows, ReadsDocuments) {
  const auto documents = read_rows(R"({"input_ids": [1, 2, 3], "labels": [1, -100, 3]}
{"labels":[-100,99],"input_ids":[0,99]}

  { "input_ids" : [ 5 ] }  )");
  ASSERT_EQ(documents.size(), 3u);
  EXPECT_THAT(documents[0].input_ids, ElementsAre(1, 2, 3));
  EXPECT_THAT(documents[0].labels, ElementsAre(ignore_label, ignore_label, 3));  // the first is always masked
  EXPECT_THAT(documents[1].input_ids, ElementsAre(0, 99));
  EXPECT_THAT(documents[1].labels, ElementsAre(ignore_label, 99));
  EXPECT_THAT(documents[2].labels, ElementsAre(ignore_label));
}

TEST(DataTokenRows, LabelsDefaultToTheTokens) {
  EXPECT_THAT(read_rows(R"({"input_ids": [4, 5, 6]})")[0].labels, ElementsAre(ignore_label, 5, 6));
  EXPECT_THAT(read_rows(R"({"input_ids": [4, 5, 6], "labels": null})")[0].labels, ElementsAre(ignore_label, 5, 6));
}

TEST(DataTokenRows, AcceptsWhateverIsJson) {
  for (
      const char* line : {
          R"({"input_ids": [1, 2], "text": "plain", "attention_mask": [1, 1]})",
          R"({"input_ids": [1, 2], "text": "esc\"aped \u00fc", "n": -1.5e3, "o": {"input_ids": ["x"]}, "a": [[], {}]})",
          R"({"input_ids": [1.0, 2e0]})",
          R"({"input\u005fids": [1, 2], "t": true, "labels": null, "attention_mask": null})",
          "\xef\xbb\xbf{\"input_ids\": [1, 2]}",
          "{\"input_ids\": [1, 2]}\r",
          "\t{\"input_ids\":\t[1,\t2]}",
          R"({"text": "naïve", "input_ids": [1, 2]})",
      }) {
    const auto documents = read_rows(std::string(line) + "\n");
    ASSERT_EQ(documents.size(), 1u) << line;
    EXPECT_THAT(documents[0].input_ids, ElementsAre(1, 2)) << line;
  }
}

TEST(DataTokenRows, ErrorsNameLineAndKey) {
  const std::string good = "{\"input_ids\": [1]}\n\n";
  EXPECT_THAT(error_of_rows(good + "{\"input_ids\": [1, 2"),
              StartsWith("d.jsonl:3: not valid JSON: column 20: syntax error"));
  EXPECT_THAT(error_of_rows("{\"input_ids\": [007]}"), HasSubstr("d.jsonl:1: not valid JSON: column 17: "));
  EXPECT_THAT(error_of_rows("{\"input_ids\": [1]} x"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of_rows("{\"input_ids\": [1]}{\"input_ids\": [1]}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of_rows("hello"), HasSubstr("d.jsonl:1: not valid JSON: column 1: "));
  EXPECT_EQ(
      error_of_rows("[1, 2]"),
      "d.jsonl:1: expected an object on every line, got an array; a list of rows is read from a file named *.json");
  EXPECT_THAT(error_of_rows("[\n  {\"input_ids\": [1]}\n]"), StartsWith("d.jsonl:1: expected an object on every line"));
  EXPECT_EQ(error_of_rows(good + "3"), "d.jsonl:3: expected an object, got 3");
  EXPECT_EQ(error_of_rows(good + "{}"), "d.jsonl:3: input_ids: missing, expected an array of token ids");
  EXPECT_EQ(error_of_rows(R"({"labels": [1]})"), "d.jsonl:1: input_ids: missing, expected an array of token ids");
  EXPECT_EQ(error_of_rows(R"({"input_ids": null})"), "d.jsonl:1: input_ids: missing, expected an array of token ids");
  EXPECT_EQ(error_of_rows(R"({"text": "a story"})"), "d.jsonl:1: input_ids: missing, expected an array of token ids");
  EXPECT_EQ(error_of_rows(R"({"input_ids": "1 2"})"),
            "d.jsonl:1: input_ids: expected an array of integers, got \"1 2\"");
  EXPECT_EQ(error_of_rows(R"({"input_ids": 7})"), "d.jsonl:1: input_ids: expected an array of integers, got 7");
  EXPECT_EQ(error_of_rows(R"({"input_ids": {"a": 1}})"),
            "d.jsonl:1: input_ids: expected an array of integers, got an object");
  EXPECT_EQ(error_of_rows(R"({"input_ids": [1, "2"]})"), "d.jsonl:1: input_ids[1]: expected an integer, got \"2\"");
  EXPECT_EQ(error_of_rows(R"({"input_ids": [1, null]})"), "d.jsonl:1: input_ids[1]: expected an integer, got null");
  EXPECT_EQ(error_of_rows(R"({"input_ids": [true]})"), "d.jsonl:1: input_ids[0]: expected an integer, got true");
  EXPECT_EQ(error_of_rows(R"({"input_ids": [[1, 2]]})"), "d.jsonl:1: input_ids[0]: expected an integer, got an array");
  EXPECT_EQ(error_of_rows(R"({"input_ids": [1, 2.5]})"), "d.jsonl:1: input_ids[1]: expected an integer, got 2.5");
  EXPECT_EQ(error_of_rows(R"({"input_ids": []})"), "d.jsonl:1: input_ids: is empty, expected at least one token");
  EXPECT_EQ(error_of_rows(R"({"input_ids": [1], "input_ids": [2]})"), "d.jsonl:1: the key \"input_ids\" occurs twice");
  EXPECT_EQ(error_of_rows(R"({"input_ids": [1], "text": "a", "text": "b"})"),
            "d.jsonl:1: the key \"text\" occurs twice");
  EXPECT_EQ(error_of_rows(R"({"input_ids": [1, 2], "labels": [1]})"),
            "d.jsonl:1: labels: has 1 entries for 2 input_ids");
  EXPECT_EQ(error_of_rows(R"({"input_ids": [1, 2], "labels": []})"),
            "d.jsonl:1: labels: has 0 entries for 2 input_ids");
  EXPECT_EQ(error_of_rows(R"({"input_ids": [1, 2], "labels": [1, 0.5]})"),
            "d.jsonl:1: labels[1]: expected an integer, got 0.5");
}

TEST(DataTokenRows, IdsOutsideTheVocabulary) {
  EXPECT_EQ(error_of_rows(R"({"input_ids": [99, 100]})"),
            "d.jsonl:1: input_ids[1]: token id 100 is outside the model's vocabulary, 0 to 99");
  EXPECT_EQ(error_of_rows(R"({"input_ids": [-1]})"),
            "d.jsonl:1: input_ids[0]: token id -1 is outside the model's vocabulary, 0 to 99");
  EXPECT_EQ(error_of_rows(R"({"input_ids": [-100]})"),
            "d.jsonl:1: input_ids[0]: token id -100 is outside the model's vocabulary, 0 to 99");
  // 2^32 + 1 must not wrap around to 1.
  EXPECT_EQ(error_of_rows(R"({"input_ids": [4294967297]})"),
            "d.jsonl:1: input_ids[0]: token id 4294967297 is outside the model's vocabulary, 0 to 99");
  EXPECT_THAT(error_of_rows(R"({"input_ids": [18446744073709551615]})"),
              HasSubstr("is outside the model's vocabulary"));
  EXPECT_THAT(error_of_rows(R"({"input_ids": [99999999999999999999999]})"), HasSubstr("input_ids[0]"));
  EXPECT_EQ(error_of_rows(R"({"input_ids": [1, 2], "labels": [-100, 100]})"),
            "d.jsonl:1: labels[1]: label 100 is neither -100 nor in the model's vocabulary, 0 to 99");
  EXPECT_EQ(error_of_rows(R"({"input_ids": [1, 2], "labels": [-1, 2]})"),
            "d.jsonl:1: labels[0]: label -1 is neither -100 nor in the model's vocabulary, 0 to 99");
  EXPECT_EQ(error_of_rows(R"({"input_ids": [1, 2], "labels": [-99, 2]})"),
            "d.jsonl:1: labels[0]: label -99 is neither -100 nor in the model's vocabulary, 0 to 99");
  EXPECT_NO_THROW(read_rows(R"({"input_ids": [100]})", 101));
}

TEST(DataTokenRows, PaddingIsRefused) {
  EXPECT_EQ(error_of_rows(R"({"input_ids": [1, 0], "attention_mask": [1, 0]})"),
            "d.jsonl:1: attention_mask[1]: is 0: documents must not be padded, leave the padding out of input_ids");
  EXPECT_EQ(error_of_rows(R"({"input_ids": [1, 0], "attention_mask": [1]})"),
            "d.jsonl:1: attention_mask: has 1 entries for 2 input_ids");
}

TEST(DataTokenRows, FilesThatHoldNothing) {
  const TempFolder folder;
  EXPECT_THAT(user_error_of([&] { read_file(folder / "absent", 9); }), EndsWith("absent: no such file"));
  EXPECT_THAT(user_error_of([&] { read_file(folder.path(), 9); }), ::testing::HasSubstr(": there are no .jsonl, "));
  EXPECT_EQ(error_of_rows(""), "d.jsonl: holds no rows");
  EXPECT_EQ(error_of_rows("\n \n\r\n"), "d.jsonl: holds no rows");
}

TEST(DataTokenRows, DeepNestingIsAnError) {
  EXPECT_THAT(error_of_rows("{\"x\":" + std::string(1'000'000, '[')), HasSubstr("nested more than 256 levels deep"));
  EXPECT_THAT(error_of_rows(std::string(1'000'000, '[')), HasSubstr("expected an object on every line"));
}

// The quick reader and the general one must agree wherever the quick one answers; where it gives up, nothing is lost.
TEST(DataTokenRows, QuickAndGeneralReadersAgree) {
  const std::string base =
      R"({"input_ids": [1, 20, 300], "labels": [-100, 20, -0], "text": "some words", "attention_mask": [1]})";
  TokenArrays quick;
  ASSERT_TRUE(read_token_line(base, quick));
  const Philox philox{5};
  const std::string_view letters = "0123456789-+.,:[]{}\" \\eEatrufnxyz\t";
  int agreed = 0;
  for (std::uint64_t round = 0; round < 20000; ++round) {
    std::string line = base;
    const auto random = philox.words(round);
    const std::size_t at = random[0] % line.size();
    const char letter = letters[random[1] % letters.size()];
    if (random[2] % 3 == 0) line[at] = letter;
    if (random[2] % 3 == 1) line.insert(at, 1, letter);
    if (random[2] % 3 == 2) line.erase(at, 1 + random[3] % 4);
    if (!read_token_line(line, quick)) continue;
    io::Value value;
    ASSERT_NO_THROW(value = io::read_value(line, "x")) << line;
    const TokenArrays full = token_arrays(Row(value, "x"));
    ASSERT_EQ(quick.input_ids.values, full.input_ids.values) << line;
    ASSERT_EQ(quick.labels.values, full.labels.values) << line;
    ASSERT_EQ(quick.input_ids.present, full.input_ids.present) << line;
    ASSERT_EQ(quick.labels.present, full.labels.present) << line;
    ++agreed;
  }
  EXPECT_GT(agreed, 1000);
}

// Longer than the reader's buffer: many lines, and one line that alone exceeds it.
TEST(DataTokenRows, LargeFiles) {
  const TempFolder folder;
  std::string text;
  constexpr int count = 30000;
  for (int i = 0; i < count; ++i) {
    text += "{\"input_ids\": [";
    for (int j = 0; j <= i % 50; ++j) text += (j == 0 ? "" : ", ") + std::to_string((i + j) % 50000);
    text += "]}\n";
  }
  text += "{\"input_ids\": [7";
  for (int j = 0; j < 2'000'000; ++j) text += ", 12345";
  text += "]}";
  std::uint64_t last = 0;
  const auto documents = read_file(folder.write("d.jsonl", text), 50000, [&](std::uint64_t bytes, std::uint64_t) {
    EXPECT_GE(bytes, last);
    last = bytes;
  });
  EXPECT_EQ(last, text.size());
  ASSERT_EQ(documents.size(), count + 1u);
  for (int i = 0; i < count; ++i) {
    const auto& ids = documents[static_cast<std::size_t>(i)].input_ids;
    ASSERT_EQ(ids.size(), static_cast<std::size_t>(i % 50 + 1));
    ASSERT_EQ(ids.back(), (i + i % 50) % 50000);
  }
  EXPECT_EQ(documents.back().input_ids.size(), 2'000'001u);
  EXPECT_EQ(std::ranges::count(documents.back().input_ids, 12345), 2'000'000);
}

TEST(DataTokenRows, ReadsRealFixtures) {
  const auto data = inlay::testing::test_data();
  if (!data) GTEST_SKIP() << "no test data (INLAY_TEST_DATA, or shared/data beside the repository)";
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(*data / "fixtures/models")) {
    if (entry.path().filename() != "data.jsonl") continue;
    for (const Document& document : read_file(entry.path(), 201088)) {
      EXPECT_EQ(document.input_ids.size(), document.labels.size());
    }
    ++count;
  }
  EXPECT_GT(count, 0);
  EXPECT_THAT(user_error_of([&] { read_file(*data / "datasets/gsm8k/test.jsonl", 9); }),
              EndsWith("test.jsonl:1: input_ids: missing, expected an array of token ids"));
}

}  // namespace
}  // namespace inlay::data
