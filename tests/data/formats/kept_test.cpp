#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/dataset.h"
#include "data/documents.h"
#include "data/formats/kept.h"
#include "support/files.h"

namespace inlay::data {
namespace {

using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

KeptPredictions read(const std::string& row, std::size_t tokens, const std::string& field = "logprobs") {
  const io::Value value = io::read_value(row, "r:1");
  return read_kept(Row(value, "r:1"), field, tokens, 100);
}

// The last entry belongs to the last token; the first ones have none.
TEST(DataKept, EntriesStandAtTheirTokens) {
  const KeptPredictions kept = read(R"({"logprobs": [[-0.5, -1], [-0.25]], "target_token_ids": [[7, 9], [3]]})", 3);
  EXPECT_EQ(kept.per_token, 2);
  EXPECT_THAT(kept.ids, ElementsAre(-1, -1, 7, 9, 3, -1));
  EXPECT_THAT(kept.log_probs, ElementsAre(0, 0, -0.5f, -1, -0.25f, 0));
  const KeptPredictions other =
      read(R"({"lp": [[{"token": "token_id:7", "logprob": -0.5}, {"token": "token_id:9", "logprob": -1}]]})", 1, "lp");
  EXPECT_THAT(other.ids, ElementsAre(7, 9));
}

TEST(DataKept, MistakesAreNamed) {
  EXPECT_THAT(user_error_of([] { read(R"({"text": "a"})", 1); }),
              HasSubstr("has no logprobs; kd_trainer: true without a kd_teacher learns the log-probabilities"));
  EXPECT_THAT(user_error_of([] { read(R"({"logprobs": [[-1], [-1]], "target_token_ids": [[1], [2]]})", 1); }),
              HasSubstr("2 entries for 1 tokens"));
  EXPECT_THAT(user_error_of([] { read(R"({"logprobs": [[-1]], "target_token_ids": [[100]]})", 1); }),
              HasSubstr("outside the model's vocabulary"));
  EXPECT_THAT(user_error_of([] { read(R"({"logprobs": [[-1, -2]], "target_token_ids": [[1]]})", 1); }),
              HasSubstr("a different length"));
}

// Prepared data keeps them; all documents have as many as the first, and a part of one has its own.
TEST(DataKept, StayWithPreparedData) {
  const TempFolder folder;
  folder.write(
      "rows.jsonl",
      "{\"input_ids\": [5, 6, 7], \"logprobs\": [[-1, -2], [-3, -4]], \"target_token_ids\": [[1, 2], [3, 4]]}\n"
      "{\"input_ids\": [8, 9], \"logprobs\": [[-5, -6, -7]], \"target_token_ids\": [[9, 8, 7]]}\n");
  const DatasetOptions dataset{.path = (folder / "rows.jsonl").string(),
                               .format = {.type = "tokens", .reads_predictions = true}};
  for (int again = 0; again < 2; ++again) {
    Documents documents;
    documents.add(read_dataset(dataset, {.vocab = 100, .prepared = folder / "prepared"}));
    EXPECT_EQ(documents.kept(), 2);
    EXPECT_THAT(documents.read(0).kept.ids, ElementsAre(-1, -1, 1, 2, 3, 4));
    EXPECT_THAT(documents.read(1).kept.ids, ElementsAre(-1, -1, 9, 8));
    EXPECT_THAT(documents.read(1).kept.log_probs, ElementsAre(0, 0, -5, -6));
    EXPECT_THAT(documents.read(0, 1, 2).kept.ids, ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(documents.read(1).input_ids, ElementsAre(8, 9));
  }
}

}  // namespace
}  // namespace inlay::data
