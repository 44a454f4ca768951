#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "data/dataset.h"
#include "data/parquet/row_reader.h"
#include "data/parquet/token_reader.h"
#include "data/row_blocks.h"
#include "jinja/json_value.h"
#include "support/files.h"
#include "support/paths.h"

// Files made by tests/golden/make_parquet.py, with the rows that they hold as JSON beside them.
namespace inlay::data {
namespace {

namespace fs = std::filesystem;
using inlay::testing::read_text;
using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

fs::path golden(const std::string& name) { return testing::source_folder() / "tests/golden/parquet" / name; }

// As JSON, which tells null from absent, 1 from 1.0 and true.
std::vector<std::string> rows_of(const fs::path& path) {
  std::vector<std::string> rows;
  const auto blocks = open_rows(path, "text");
  while (auto block = blocks->next()) {
    for (RawRow& row : block->rows) {
      jinja::Budget budget{jinja::Limits{}};
      jinja::Builder out(budget);
      append_json(out, jinja::from(blocks->value(row)), {});
      rows.push_back(out.text());
    }
  }
  return rows;
}

class DataParquet : public ::testing::TestWithParam<std::string> {};

// all_delta.parquet holds the rows of all.jsonl.
TEST_P(DataParquet, HoldsTheRowsOfTheJsonBesideIt) {
  const std::string name = GetParam();
  const auto expected = rows_of(golden(name.substr(0, name.find('_')) + ".jsonl")),
             rows = rows_of(golden(name + ".parquet"));
  ASSERT_GT(expected.size(), 10u);
  ASSERT_EQ(rows.size(), expected.size());
  for (std::size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], expected[i]) << "row " << i;
}

INSTANTIATE_TEST_SUITE_P(, DataParquet,
                         ::testing::Values("all_snappy", "all_none_small_pages", "all_zstd_v2",
                                           "all_gzip_v2_small_pages", "all_lz4_plain", "all_delta",
                                           "all_delta_v2_small_pages", "common_polars", "common_duckdb", "tokens_delta",
                                           "tokens_dictionary"),
                         [](const auto& info) { return info.param; });

// The same documents whether integers come in lines, in rows, or in columns of any encoding.
TEST(DataParquetTokens, ComeStraightFromTheirColumns) {
  const auto read = [](const std::string& name) {
    return read_dataset({.path = golden(name).string(), .format = {.type = "tokens"}}, {.vocab = 300});
  };
  const auto expected = read("tokens.jsonl");
  ASSERT_EQ(expected->size(), 12);
  for (const char* name : {"tokens_delta.parquet", "tokens_dictionary.parquet"}) {
    EXPECT_EQ(read(name)->digest(), expected->digest()) << name;
    const io::MappedFile file(golden(name));
    ASSERT_TRUE(parquet::TokenReader::fits(parquet::read_metadata(file.bytes(), name))) << name;
    parquet::TokenReader columns(file.bytes(), parquet::read_metadata(file.bytes(), name), name);
    parquet::RowReader rows(file.bytes(), parquet::read_metadata(file.bytes(), name), name);
    while (rows.rows_read() < rows.rows()) {
      TokenArrays arrays = columns.next();
      const io::Value value = rows.next();
      const Row row(value, name);
      for (const char* key : {"input_ids", "labels"}) {
        std::vector<std::int32_t> values;
        for (const Row& element : row.find(key)->elements())
          values.push_back(static_cast<std::int32_t>(element.number()));
        EXPECT_EQ(arrays.find(key)->values, values) << name << " " << key;
        EXPECT_TRUE(arrays.find(key)->present);
      }
      EXPECT_FALSE(arrays.attention_mask.present);
    }
    EXPECT_EQ(columns.rows_read(), rows.rows());
  }
}

TEST(DataParquetErrors, NameTheFileAndTheColumn) {
  const auto error_of = [](const fs::path& path) { return user_error_of([&] { rows_of(path); }); };
  EXPECT_TRUE(rows_of(golden("empty.parquet")).empty());
  EXPECT_THAT(error_of(golden("brotli.parquet")),
              HasSubstr("brotli.parquet: column input_ids.list.element: is compressed with brotli; snappy, gzip"));
  const TempFolder folder;
  EXPECT_THAT(error_of(folder.write("a.parquet", "a")), HasSubstr("a.parquet: is not a Parquet file, or was cut"));
  const std::string whole = read_text(golden("all_snappy.parquet"));
  EXPECT_THAT(error_of(folder.write("a.parquet", whole.substr(0, whole.size() / 2))), HasSubstr("was cut short"));
  EXPECT_THAT(error_of(folder.write("a.parquet", whole.substr(0, whole.size() - 1) + "E")), HasSubstr("is encrypted"));
}

// Whatever a file holds, it is read, or refused with its name; nothing is read past an end (which sanitizers see).
TEST(DataParquetErrors, BrokenBytesAreReadOrRefused) {
  const TempFolder folder;
  std::mt19937 random(3);
  int refused = 0;
  for (const char* name : {"all_snappy", "all_none_small_pages", "all_delta", "common_polars", "common_duckdb"}) {
    const std::string whole = read_text(golden(std::string(name) + ".parquet"));
    for (int i = 0; i < 60; ++i) {
      std::string broken = whole;
      for (int k = 0; k < 4; ++k) broken[4 + random() % (broken.size() - 12)] = static_cast<char>(random());
      const fs::path path = folder.write("broken.parquet", broken);
      const std::string error = user_error_of([&] { rows_of(path); });
      ASSERT_THAT(error, AnyOf("<no error>", StartsWith(path.string() + ":")));
      refused += error == "<no error>" ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 30);
}

}  // namespace
}  // namespace inlay::data
