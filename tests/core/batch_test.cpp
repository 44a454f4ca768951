#include "core/batch.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace inlay {
namespace {

using Ints = std::vector<std::int32_t>;

TEST(CoreBatch, LabelsMoveToThePositionThatPredictsThem) {
  const std::vector<Document> documents = {{{1, 2, 3, 4}, {-100, 2, -100, 4}}};
  const PackedBatch batch = pack(documents);
  EXPECT_EQ(batch.tokens, (Ints{1, 2, 3, 4}));
  EXPECT_EQ(batch.targets, (Ints{2, -100, 4, -100}));
  EXPECT_EQ(batch.positions, (Ints{0, 1, 2, 3}));
  EXPECT_EQ(batch.cu_seqlens, (Ints{0, 4}));
  EXPECT_EQ(batch.valid_rows, (Ints{0, 2}));
}

// Nothing crosses from one document into the next: not a target, not a position.
TEST(CoreBatch, DocumentsStayApart) {
  const std::vector<Document> documents = {{{5, 6}, {5, 6}}, {{7}, {7}}, {{8, 9, 10}, {8, 9, 10}}};
  const PackedBatch batch = pack(documents);
  EXPECT_EQ(batch.tokens, (Ints{5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(batch.targets, (Ints{6, -100, -100, 9, 10, -100}));
  EXPECT_EQ(batch.positions, (Ints{0, 1, 0, 0, 1, 2}));
  EXPECT_EQ(batch.cu_seqlens, (Ints{0, 2, 3, 6}));
  EXPECT_EQ(batch.valid_rows, (Ints{0, 3, 4}));
  EXPECT_EQ(batch.token_count(), 6);
  EXPECT_EQ(batch.document_count(), 3);
  EXPECT_EQ(batch.valid_count(), 3);
}

TEST(CoreBatch, WeightsMoveWithTheirLabels) {
  const std::vector<Document> documents = {{{1, 2, 3}, {-100, 2, 3}, {9, 0.5f, 2}}, {{4, 5}, {-100, 5}}};
  const PackedBatch batch = pack(documents);
  EXPECT_EQ(batch.weights, (std::vector<float>{0.5f, 2, 1, 1, 1}));
  EXPECT_EQ(batch.valid_weight(), 3.5);
  const PackedBatch plain = pack(std::span(documents).last(1));
  EXPECT_TRUE(plain.weights.empty());
  EXPECT_EQ(plain.valid_weight(), 1.0);
}

TEST(CoreBatch, PrefixesEndBeforeTheFirstLearnedToken) {
  const std::vector<Document> documents = {{{1, 2, 3}, {-100, -100, 3}}, {{4, 5}, {-100, -100}}, {{6, 7}, {-100, 7}}};
  EXPECT_EQ(pack(documents).prefix_lengths(), (Ints{2, 2, 1}));
}

TEST(CoreBatch, NothingAndEmptyDocuments) {
  const PackedBatch nothing = pack({});
  EXPECT_EQ(nothing.cu_seqlens, (Ints{0}));
  EXPECT_EQ(nothing.document_count(), 0);
  const std::vector<Document> documents = {{{}, {}}, {{3, 4}, {3, 4}}, {{}, {}}};
  const PackedBatch batch = pack(documents);
  EXPECT_EQ(batch.cu_seqlens, (Ints{0, 0, 2, 2}));
  EXPECT_EQ(batch.valid_rows, (Ints{0}));
}

TEST(CoreBatch, MaskedDocumentsHaveNoValidRows) {
  const std::vector<Document> documents = {
      {{1, 2, 3}, {1, -100, -100}}};  // only the first label, which nobody predicts
  EXPECT_EQ(pack(documents).valid_count(), 0);
}

TEST(CoreBatch, LabelsAreAsManyAsTokens) {
  const std::vector<Document> documents = {{{1, 2, 3}, {1, 2}}};
  EXPECT_THROW(pack(documents), InternalError);
}

// A row here and its row there predict the same token. Documents without another prompt look the same to both.
TEST(CoreBatch, AnotherModelSeesOtherPrompts) {
  constexpr std::int32_t none = ignore_label;
  const std::vector<Document> documents = {
      {.input_ids = {1, 2, 3, 4}, .labels = {none, none, 3, 4}, .others_prompt = {7, 8, 9}},
      {.input_ids = {5, 6}, .labels = {none, 6}},
      {.input_ids = {1, 2, 3}, .labels = {none, none, 3}, .others_prompt = {8}}};
  const PackedBatch batch = pack(documents);
  EXPECT_EQ(batch.tokens, (Ints{1, 2, 3, 4, 5, 6, 1, 2, 3}));
  ASSERT_EQ(batch.others.size(), 1u);
  const PackedBatch& others = batch.others[0];
  EXPECT_EQ(others.tokens, (Ints{7, 8, 9, 3, 4, 5, 6, 8, 3}));
  EXPECT_EQ(others.cu_seqlens, (Ints{0, 5, 7, 9}));
  EXPECT_EQ(others.positions, (Ints{0, 1, 2, 3, 4, 0, 1, 0, 1}));
  EXPECT_EQ(others.valid_count(), 0);
  ASSERT_EQ(batch.others_rows.size(), batch.tokens.size());
  for (const std::int32_t row : batch.valid_rows) {
    const auto here = static_cast<std::size_t>(row);
    const auto there = static_cast<std::size_t>(batch.others_rows[here]);
    EXPECT_EQ(others.tokens[there + 1], batch.tokens[here + 1]) << row;
  }
  EXPECT_EQ(batch.others_rows[1], 2);  // the last token of either prompt
  for (std::size_t d = 0; d < documents.size(); ++d) {
    EXPECT_EQ(documents[d].others_length(), others.cu_seqlens[d + 1] - others.cu_seqlens[d]);
  }
  EXPECT_TRUE(pack(std::span(documents).subspan(1, 1)).others.empty());
}

TEST(CoreBatch, TruncatingCutsAllThatADocumentHas) {
  Document plain{{1, 2, 3}, {-100, 2, 3}}, weighted{{1, 2, 3}, {-100, 2, 3}, {1, 2, 3}};
  EXPECT_FALSE(truncate(plain, 3));
  EXPECT_EQ(plain.input_ids.size(), 3u);
  for (Document* document : {&plain, &weighted}) {
    EXPECT_TRUE(truncate(*document, 2));
    EXPECT_EQ(document->input_ids, (std::vector<std::int32_t>{1, 2}));
    EXPECT_EQ(document->labels, (std::vector<std::int32_t>{-100, 2}));
  }
  EXPECT_TRUE(plain.weights.empty());
  EXPECT_EQ(weighted.weights, (std::vector<float>{1, 2}));
}

}  // namespace
}  // namespace inlay
