#include "data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/chat_model.h"

namespace inlay::data {
namespace {

using inlay::testing::ChatModel;
using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class DataDataset : public ::testing::Test {
 protected:
  std::shared_ptr<const Corpus> read(const std::filesystem::path& file, DatasetOptions options = {}) {
    options.path = file.string();
    return read_dataset(options, context_);
  }
  std::string error_of(const std::filesystem::path& file, const DatasetOptions& options = {}) {
    return user_error_of([&] { read(file, options); });
  }
  std::string text(const Corpus& corpus, std::int64_t index) {
    return Tokenizer::load(model_.path()).decode(corpus.at(index).input_ids, true);
  }

  ChatModel model_;
  TempFolder folder_;
  ReadContext context_ = {.model = model_.path(), .vocab = ChatModel::vocab};
};

const std::string chat =
    R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]})";

TEST_F(DataDataset, ReadsEveryKindOfFile) {
  EXPECT_EQ(text(*read(folder_.write("a.jsonl", chat + "\n\n" + chat + "\n")), 1), "user\nHi\nassistant\nYes.\n");
  EXPECT_EQ(text(*read(folder_.write("a.json", "[" + chat + "]")), 0), "user\nHi\nassistant\nYes.\n");
  const auto lines = read(folder_.write("a.txt", "One line.\n\nAnother.\n"));
  EXPECT_EQ(lines->size(), 2);
  EXPECT_EQ(text(*lines, 1), "Another.");
  const std::string ids = R"({"input_ids": [5, 6, 7], "labels": [-100, 6, 7]})";
  for (const auto& [name, content] : {std::pair("t.jsonl", ids), std::pair("t.json", "[" + ids + "]")}) {
    const auto tokens = read(folder_.write(name, content));
    EXPECT_EQ(tokens->at(0).copy().labels, (std::vector<std::int32_t>{-100, 6, 7})) << name;
  }
}

TEST_F(DataDataset, ManyRowsInOrderOnAnyNumberOfThreads) {
  std::string rows;
  for (int i = 0; i < 3000; ++i) rows += R"({"text": "row )" + std::to_string(i) + "\"}\n";
  const auto file = folder_.write("many.jsonl", rows);
  context_.threads = 1;
  const auto one = read(file);
  ASSERT_EQ(one->size(), 3000);
  EXPECT_EQ(text(*one, 2999), "row 2999");
  context_.threads = 5;
  EXPECT_EQ(read(file)->digest(), one->digest());
}

TEST_F(DataDataset, MarksOfOtherSystemsAreNoText) {
  const auto corpus = read(folder_.write("w.txt",
                                         "\xEF\xBB\xBF"
                                         "first\r\nsecond\r\n"));
  ASSERT_EQ(corpus->size(), 2);
  EXPECT_EQ(text(*corpus, 0), "first");
  EXPECT_EQ(text(*corpus, 1), "second");
}

TEST_F(DataDataset, ADamagedCacheIsMadeAgain) {
  context_.prepared = folder_ / "prepared";
  const auto file = folder_.write("r.jsonl", "{\"text\": \"row\"}\n");
  const std::uint64_t digest = read(file)->digest();
  for (const auto& entry : std::filesystem::directory_iterator(context_.prepared)) {
    std::string bytes = inlay::testing::read_text(entry.path());
    bytes[bytes.size() - 1] = '\x7F';  // of a label
    std::ofstream(entry.path(), std::ios::binary) << bytes;
  }
  const auto again = read(file);
  EXPECT_EQ(again->digest(), digest);
  EXPECT_TRUE(again->within(context_.vocab));
}

TEST_F(DataDataset, ABadRowEndsTheReadingWithItsPlace) {
  EXPECT_THAT(error_of(folder_.write("b.jsonl", chat + "\n{\"messages\": [\n")),
              HasSubstr("b.jsonl:2: not valid JSON"));
  EXPECT_THAT(error_of(folder_.write("b.jsonl", chat + "\n[1]\n")), HasSubstr("b.jsonl:2: expected an object"));
  EXPECT_THAT(error_of(folder_.write("b.json", "[" + chat + ", {\"messages\": []}]")),
              HasSubstr("b.json: row 2: messages: is empty"));
  EXPECT_THAT(error_of(folder_.write("b.json", chat)), HasSubstr("expected a list of rows"));
  EXPECT_THAT(error_of(folder_.write("b.json", chat + "\n" + chat)), HasSubstr("an object a line is called .jsonl"));
  DatasetOptions named;
  named.format.chat_template = "chatml";
  EXPECT_THAT(error_of(folder_.write("b.jsonl", chat), named), HasSubstr("chat_template: 'chatml' is neither"));
  EXPECT_THAT(error_of(folder_.write("s.jsonl", R"({"text": "\ud800"})")), HasSubstr("s.jsonl:1: not valid JSON"));
  EXPECT_THAT(error_of(folder_.write("u.jsonl", "{\"text\": \"\xff\"}")), HasSubstr("u.jsonl:1: not valid JSON"));
  EXPECT_THAT(error_of(folder_.write("e.jsonl", "\n\n")), HasSubstr("e.jsonl: holds no rows"));
  EXPECT_THAT(error_of(folder_.write("n.jsonl", R"({"prompt": 1})")), HasSubstr("n.jsonl:1: the row does not tell"));
  EXPECT_THAT(error_of(folder_.write("x.csv", "a")), HasSubstr(".jsonl, .json, .parquet and .txt"));
  EXPECT_THAT(error_of(folder_.write("x.parquet", "a")), HasSubstr("x.parquet: is not a Parquet file"));
  EXPECT_THAT(error_of(folder_ / "nowhere.jsonl"), EndsWith("nowhere.jsonl: no such file"));
  EXPECT_THAT(error_of(folder_.path()), EndsWith(": is not a file"));
}

TEST_F(DataDataset, BadRowsMayBeSkippedAndAreCounted) {
  context_.bad_row = BadRow::skip;
  std::string notice;
  context_.notice = [&](const std::string& message) {
    EXPECT_TRUE(notice.empty());  // the first one only
    notice = message;
  };
  const std::string unlabelled = R"({"messages": [{"role": "user", "content": "Hi"}]})";
  const auto corpus =
      read(folder_.write("b.jsonl", "nonsense\n" + chat + "\n{\"messages\": []}\n" + unlabelled + "\n" + chat + "\n"));
  EXPECT_EQ(corpus->size(), 2);
  EXPECT_EQ(corpus->counts().rows, 5);
  EXPECT_EQ(corpus->counts().skipped, 2);
  EXPECT_EQ(corpus->counts().unlabelled, 1);
  EXPECT_THAT(notice, HasSubstr("b.jsonl:1: not valid JSON"));
  notice.clear();
  const auto tokens =
      read(folder_.write("t.jsonl", "{\"input_ids\": [1]}\n{\"input_ids\": [9999]}\n{\"input_ids\": [2]}\n"));
  EXPECT_EQ(tokens->size(), 2);
  EXPECT_EQ(tokens->counts().skipped, 1);
  notice.clear();
  EXPECT_THAT(error_of(folder_.write("all.jsonl", "x\ny\n")), HasSubstr("all.jsonl: holds no rows"));
  notice.clear();
  EXPECT_THAT(error_of(folder_.write("all.jsonl", "x\ny\n"), {.format = {.type = "completion"}}),
              HasSubstr("none of its 2 rows can be used; the first: "));
}

TEST_F(DataDataset, NothingToLearnIsAnError) {
  EXPECT_THAT(error_of(folder_.write("u.jsonl", R"({"messages": [{"role": "user", "content": "Hi"}]})")),
              HasSubstr("nothing in its 1 rows is to be learned"));
}

TEST_F(DataDataset, AVeryLongLine) {
  const std::string word(10 << 20, 'a');
  const auto corpus = read(folder_.write("long.jsonl", "{\"text\": \"" + word + "\"}\n{\"text\": \"b\"}\n"));
  EXPECT_EQ(corpus->length(0), (10 << 20) + 1);
  EXPECT_EQ(text(*corpus, 1), "b");
}

TEST_F(DataDataset, ATokenizerThatKnowsMoreThanTheModelIsNoticed) {
  context_.vocab = 200;
  EXPECT_EQ(read(folder_.write("a.jsonl", R"({"segments": [{"label": true, "text": "ab"}]})"))->size(), 1);
  const auto file = folder_.write("a.jsonl", chat);
  const std::string error = error_of(file);
  EXPECT_THAT(error, StartsWith(file.string() + ":1: the tokenizer of "));
  EXPECT_THAT(error, HasSubstr("makes token 260 of it, but the model's vocabulary ends at 199"));
  context_.bad_row = BadRow::skip;  // all rows would go
  EXPECT_EQ(error_of(file), error);
}

TEST_F(DataDataset, WhatWasReadIsKept) {
  context_.prepared = folder_ / "prepared";
  const auto file = folder_.write("k.jsonl", chat);
  const auto entries = [&] {
    return std::distance(std::filesystem::directory_iterator(context_.prepared), std::filesystem::directory_iterator());
  };
  const std::uint64_t digest = read(file)->digest();
  EXPECT_EQ(entries(), 1);
  // From the file that was kept: nothing is parsed now.
  bool parsed = false;
  context_.progress = [&](std::uint64_t, std::uint64_t) { parsed = true; };
  EXPECT_EQ(read(file)->digest(), digest);
  EXPECT_FALSE(parsed);
  EXPECT_EQ(entries(), 1);
  // Anything that matters gives another one: the ending too, which says how a file is read.
  EXPECT_NE(read(folder_.write("k.txt", chat))->digest(), digest);
  std::filesystem::remove_all(context_.prepared);
  EXPECT_EQ(read(file)->digest(), digest);
  EXPECT_NE(read(file, {.format = {.train_on_eos = "none"}})->digest(), digest);
  EXPECT_EQ(entries(), 2);
  model_.set_template("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}");
  EXPECT_NE(read(file)->digest(), digest);
  EXPECT_EQ(entries(), 3);
  EXPECT_NE(read(folder_.write("k.jsonl", chat + "\n" + chat))->digest(), digest);
  EXPECT_EQ(entries(), 4);
  EXPECT_TRUE(parsed);
}

TEST_F(DataDataset, AKeptFileThatIsBrokenIsMadeAgain) {
  context_.prepared = folder_ / "prepared";
  const auto file = folder_.write("k.jsonl", chat);
  const std::uint64_t digest = read(file)->digest();
  for (const auto& entry : std::filesystem::directory_iterator(context_.prepared)) {
    std::filesystem::resize_file(entry.path(), 20);
  }
  EXPECT_EQ(read(file)->digest(), digest);
  context_.prepared = folder_.write("not-a-folder", "x");
  EXPECT_EQ(read(file)->digest(), digest);  // a cache that cannot be written is no error
}

}  // namespace
}  // namespace inlay::data
