#include "data/dataset_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include "data/byte_source.h"
#include "data/row_blocks.h"
#include "support/files.h"
#include "support/gzip.h"

namespace inlay::data {
namespace {

namespace fs = std::filesystem;
using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::ElementsAre;
using testing::gzip;
using ::testing::HasSubstr;

class DataFiles : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    return folder_.write(name, text);
  }
  std::vector<std::string> found(DatasetOptions dataset) {
    dataset.path = (folder_ / dataset.path).string();
    std::vector<std::string> names;
    for (const fs::path& file : find_files(dataset).files) {
      names.push_back(fs::relative(file, folder_.path()).string());
    }
    return names;
  }
  std::string error_of(DatasetOptions dataset) {
    return user_error_of([&] { found(std::move(dataset)); });
  }
  // The texts of all rows, each in brackets.
  static std::string texts(const DatasetFiles& files, const std::string& key = "text") {
    const auto blocks = open_rows(files, "text");
    std::string all;
    while (auto block = blocks->next()) {
      for (RawRow& row : block->rows) {
        const io::Value value = blocks->value(row);
        all += "[" + *value.find(key)->text() + "]";
      }
    }
    return all;
  }
  std::string rows(const std::string& file, const std::string& key = "text") {
    return texts({.files = {folder_ / file}, .ds_type = {}, .slice = {}}, key);
  }

  static std::string line(const std::string& text) { return "{\"text\": \"" + text + "\"}\n"; }

  TempFolder folder_;
};

std::string zstandard(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

TEST_F(DataFiles, AFolderHasTheFilesOfASplit) {
  write("d/data/train-00000-of-00002.parquet", "");
  write("d/data/train-00001-of-00002.parquet", "");
  write("d/data/train_sft-00000-of-00001.parquet", "");
  write("d/data/validation-00000-of-00001.parquet", "");
  write("d/dataset_infos.json", "{}");
  EXPECT_THAT(found({.path = "d"}),
              ElementsAre("d/data/train-00000-of-00002.parquet", "d/data/train-00001-of-00002.parquet"));
  EXPECT_THAT(found({.path = "d", .split = "train_sft"}), ElementsAre("d/data/train_sft-00000-of-00001.parquet"));
  EXPECT_THAT(found({.path = "d", .split = "val"}), ElementsAre("d/data/validation-00000-of-00001.parquet"));
  EXPECT_THAT(found({.path = "d", .split = "validation + train"}),
              ElementsAre("d/data/validation-00000-of-00001.parquet", "d/data/train-00000-of-00002.parquet",
                          "d/data/train-00001-of-00002.parquet"));
  EXPECT_THAT(found({.path = "d", .split = "train+train_sft+train"}),
              ElementsAre("d/data/train-00000-of-00002.parquet", "d/data/train-00001-of-00002.parquet",
                          "d/data/train_sft-00000-of-00001.parquet"));
  EXPECT_THAT(error_of({.path = "d", .split = "train+nothing"}), HasSubstr("it has no split nothing"));
  EXPECT_THAT(error_of({.path = "d", .split = "train+"}), HasSubstr("split: expected a name on both sides of +"));
  EXPECT_THAT(error_of({.path = "d", .split = "train[:10%]+validation"}),
              HasSubstr("split: parts of several splits together are not supported; give each an entry of its own"));
  EXPECT_THAT(error_of({.path = "d", .split = "test"}), HasSubstr("it has no split test; it has data/train-00000"));
  write("e/a.jsonl", "");
  write("e/sub/b.csv", "");
  write("e/notes.md", "");
  EXPECT_THAT(found({.path = "e"}), ElementsAre("e/a.jsonl", "e/sub/b.csv"));
  EXPECT_THAT(found({.path = "e", .data_files = {"sub/*"}}), ElementsAre("e/sub/b.csv"));
  EXPECT_THAT(found({.path = "e/*.jsonl"}), ElementsAre("e/a.jsonl"));
  EXPECT_THAT(error_of({.path = "e/*.json"}), HasSubstr("no file matches this pattern"));
  EXPECT_THAT(error_of({.path = "missing.jsonl"}), HasSubstr("missing.jsonl: no such file"));
  EXPECT_THAT(error_of({.path = "e/a.jsonl", .split = "test"}), HasSubstr("a file has no split test"));
  EXPECT_THAT(error_of({.path = "e/a.jsonl", .split = "train+test"}), HasSubstr("a file has no split train+test"));
  EXPECT_THAT(error_of({.path = "e/a.jsonl", .split = "train[:x]"}), HasSubstr("as in train[:20%]"));
  const fs::path plain = write("f/rows", line("a"));
  DatasetOptions loader{.path = "json", .data_files = {plain.string()}};
  EXPECT_EQ(texts(find_files(loader)), "[a]");
}

TEST_F(DataFiles, SlicesAreThoseOfAllFilesTogether) {
  write("d/a.jsonl", line("1") + line("2") + line("3"));
  write("d/b.jsonl", line("4") + line("5"));
  const auto slice = [&](const std::string& split) {
    return texts(find_files({.path = (folder_ / "d").string(), .split = split}));
  };
  EXPECT_EQ(slice("train"), "[1][2][3][4][5]");
  EXPECT_EQ(slice("train[:40%]"), "[1][2]");
  EXPECT_EQ(slice("train[40%:]"), "[3][4][5]");
  EXPECT_EQ(slice("train[2:4]"), "[3][4]");
  EXPECT_EQ(slice("train[-1:]"), "[5]");
  EXPECT_EQ(slice("train[:1_000]"), "[1][2][3][4][5]");
  EXPECT_EQ(slice("train[4:2]"), "");
}

TEST_F(DataFiles, CompressedFilesAreReadAsWhatTheyHold) {
  std::string long_text;
  for (int i = 0; i < 300'000; ++i) long_text += line(std::to_string(i));
  write("a.jsonl", long_text);
  write("a.jsonl.gz", gzip(long_text.substr(0, 9000)) + gzip(long_text.substr(9000)));
  write("a.jsonl.zst", zstandard(long_text.substr(0, 9000)) + zstandard(long_text.substr(9000)));
  const std::string plain = rows("a.jsonl");
  EXPECT_TRUE(rows("a.jsonl.gz") == plain);
  EXPECT_TRUE(rows("a.jsonl.zst") == plain);
  write("l.json.gz", gzip("[" + line("a") + "," + line("b") + "]"));
  EXPECT_EQ(rows("l.json.gz"), "[a][b]");
  write("t.txt.zst", zstandard("one\ntwo\n"));
  EXPECT_EQ(rows("t.txt.zst"), "[one][two]");
  for (const char* name : {"a.jsonl.gz", "a.jsonl.zst"}) {
    const std::string whole = inlay::testing::read_text(folder_ / name);
    const std::string cut = std::string("cut-") + name, broken = std::string("broken-") + name;
    write(cut, whole.substr(0, whole.size() / 2));
    write(broken, "not compressed at all, and long enough to see");
    EXPECT_THAT(user_error_of([&] { rows(cut); }), HasSubstr("is damaged, or cut short"));
    EXPECT_THAT(user_error_of([&] { rows(broken); }), HasSubstr("is damaged, or cut short"));
  }
}

// Also where the last piece is full to its end: nothing follows, and nothing is missing.
TEST_F(DataFiles, CompressedFilesEndWhereTheirTextEnds) {
  const std::string text = "one and two and three and four";
  write("t.gz", gzip(text.substr(0, 12)) + gzip(text.substr(12)));
  write("t.zst", zstandard(text.substr(0, 12)) + zstandard(text.substr(12)));
  for (const char* name : {"t.gz", "t.zst"}) {
    for (const std::size_t at_once : {std::size_t{1}, std::size_t{6}, text.size(), std::size_t{100}}) {
      const auto source = open_source(folder_ / name);
      std::vector<char> piece(at_once);
      std::string read;
      while (const std::size_t got = source->read(piece)) read.append(piece.data(), got);
      EXPECT_EQ(read, text) << name << ", " << at_once << " at once";
    }
  }
}

TEST_F(DataFiles, AJsonFileMayHaveAnObjectALine) {
  write("a.json", "\n" + line("1") + line("2"));
  EXPECT_EQ(rows("a.json"), "[1][2]");
}

TEST_F(DataFiles, TablesOfTextsHaveNamesInTheirFirstLine) {
  write("a.csv", "\xEF\xBB\xBFquestion,answer\r\n\"Say \"\"hi\"\", please\",hi\r\nplain,\"two\nlines\"\r\n\nlast,\"\"");
  EXPECT_EQ(rows("a.csv", "question"), "[Say \"hi\", please][plain][last]");
  EXPECT_EQ(rows("a.csv", "answer"), "[hi][two\nlines][]");
  write("a.tsv", "text\tother\na,b\tc\n");
  EXPECT_EQ(rows("a.tsv"), "[a,b]");
  // Names in quotes after the mark of the byte order; an end of line that belongs to the text.
  write("marked.csv", "\xEF\xBB\xBF\"a, b\",c\r\n1,\"two\r\"\r\n");
  EXPECT_EQ(rows("marked.csv", "a, b"), "[1]");
  EXPECT_EQ(rows("marked.csv", "c"), "[two\r]");
  write("bad.csv", "a,b\n1,2\n\n3\n");
  EXPECT_THAT(user_error_of([&] { rows("bad.csv", "a"); }),
              HasSubstr("bad.csv:4: 1 value, but the first line names 2 columns"));
  write("open.csv", "a\n\"never ends\n");
  EXPECT_THAT(user_error_of([&] { rows("open.csv", "a"); }), HasSubstr("open.csv:2: a value in quotes"));
  write("twice.csv", "a,a\n1,2\n");
  EXPECT_THAT(user_error_of([&] { rows("twice.csv", "a"); }), HasSubstr("two columns are called 'a'"));
  write("x.doc", "");
  EXPECT_THAT(user_error_of([&] { rows("x.doc"); }), HasSubstr("ds_type says what a file is"));
}

}  // namespace
}  // namespace inlay::data
