#include "data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include <algorithm>
#include <bit>
#include <set>
#include <span>

#include "data/documents.h"
#include "io/hash.h"
#include "support/files.h"

namespace inlay::data {
namespace {

using inlay::testing::read_text;
using inlay::testing::TempFolder;
using ::testing::ElementsAre;

Corpus make(const std::vector<Document>& documents, const RowCounts& counts = {}) {
  Corpus::Builder builder = Corpus::Builder::in_memory("test");
  for (const Document& document : documents) builder.add(document);
  return std::move(builder).finish(counts);
}

Corpus save(const std::filesystem::path& path, const std::vector<Document>& documents, const RowCounts& counts = {}) {
  Corpus::Builder builder(path);
  for (const Document& document : documents) builder.add(document);
  return std::move(builder).finish(counts);
}

const std::vector<Document> three = {{{1, 2, 3}, {-100, 2, -100}}, {{7}, {-100}}, {{4, 5}, {-100, 5}}};

TEST(DataCorpus, ComesBackFromDiskAsItWas) {
  const TempFolder folder;
  const Corpus made = save(folder / "c.tokens", three, {.rows = 9, .skipped = 2, .unlabelled = 4});
  const auto read = Corpus::open(folder / "c.tokens");
  ASSERT_TRUE(read.has_value());
  EXPECT_TRUE(read->verify());
  EXPECT_EQ(read->digest(), make(three).digest());
  for (const Corpus& corpus : {std::cref(made), std::cref(*read)}) {
    EXPECT_EQ(corpus.size(), 3);
    EXPECT_EQ(corpus.counts().rows, 9);
    EXPECT_EQ(corpus.counts().skipped, 2);
    EXPECT_EQ(corpus.counts().unlabelled, 4);
    for (std::int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(corpus.read(i).input_ids, three[static_cast<std::size_t>(i)].input_ids);
      EXPECT_EQ(corpus.read(i).labels, three[static_cast<std::size_t>(i)].labels);
      EXPECT_TRUE(corpus.read(i).weights.empty());
    }
    EXPECT_TRUE(corpus.within(8));
    EXPECT_FALSE(corpus.within(7));
  }
  EXPECT_EQ(make({}).size(), 0);
}

TEST(DataCorpus, PartsOfDocumentsAndTheirWeights) {
  std::vector<Document> documents = three;
  documents[0].weights = {1.0f, 0.25f, 3.0f};
  const Corpus corpus = make(documents);
  EXPECT_THAT(corpus.read(0).weights, ElementsAre(1, 0.25f, 3));
  EXPECT_EQ(corpus.length(0), 3);
  const Document part = corpus.read(0, 1, 2);
  EXPECT_THAT(part.input_ids, ElementsAre(2, 3));
  EXPECT_THAT(part.labels, ElementsAre(2, -100));
  EXPECT_THAT(part.weights, ElementsAre(0.25f, 3));
  EXPECT_THAT(corpus.read_labels(2, 1, 1), ElementsAre(5));
  EXPECT_TRUE(corpus.read(2).weights.empty());  // all of them are 1
  EXPECT_NE(corpus.digest(), make(three).digest());
}

// Runs of earlier versions, which wrote tokens and labels one after the other, are resumed by the digest that they
// knew.
TEST(DataCorpus, TheDigestDoesNotDependOnHowDocumentsAreWritten) {
  std::vector<Document> documents = three;
  documents[1].weights = {0.5f};
  const std::vector<std::int32_t> words = {
      1,    2,    3,
      -100, 2,    -100,                               // of the first
      7,    -100, std::bit_cast<std::int32_t>(0.5f),  // of the second, with a weight
      4,    5,    -100,
      5};
  const std::vector<std::uint64_t> places = {0, 6 << 1 | 1, 9 << 1, 13 << 1};
  const std::uint64_t both[] = {io::content_hash(std::as_bytes(std::span(words))),
                                io::content_hash(std::as_bytes(std::span(places)))};
  EXPECT_EQ(make(documents).digest(), io::content_hash(std::as_bytes(std::span(both))));
}

// A token and whether it is learned are one word; only labels that are something else take another.
TEST(DataCorpus, LabelsOfTheirOwnAndWhatTheyTake) {
  const std::vector<Document> own = {{{1, 2, 3}, {-100, 9, 3}}, {{7, 8}, {sequence_mark(SequenceRole::chosen), 8}}};
  std::vector<Document> mixed = {three[0], own[0], three[2], own[1]};
  mixed[1].weights = {0.5f, 1.0f, 2.0f};
  const Corpus corpus = make(mixed);
  for (std::int64_t i = 0; i < 4; ++i) {
    const Document& expected = mixed[static_cast<std::size_t>(i)];
    const std::int64_t last = corpus.length(i) - 1;
    EXPECT_EQ(corpus.read(i).input_ids, expected.input_ids);
    EXPECT_EQ(corpus.read(i).labels, expected.labels);
    EXPECT_EQ(corpus.read(i).weights, expected.weights);
    EXPECT_THAT(corpus.read_labels(i, last, 1), ElementsAre(expected.labels.back()));
  }
  EXPECT_EQ(make({own[0]}).bytes() - make({three[0]}).bytes(), 3 * 4u);
  EXPECT_NE(make({own[0]}).digest(), make({three[0]}).digest());
  EXPECT_FALSE(make({{{1, -2}, {-100, -100}}}).within(8));
}

// A cache that was cut, or is something else, must be noticed before it is used.
TEST(DataCorpus, BrokenFilesAreRefused) {
  const TempFolder folder;
  save(folder / "c.tokens", three);
  const std::string whole = read_text(folder / "c.tokens");
  for (std::size_t length = 0; length < whole.size(); length += 3) {
    EXPECT_FALSE(Corpus::open(folder.write("cut", whole.substr(0, length))).has_value()) << length;
  }
  EXPECT_FALSE(Corpus::open(folder.write("more", whole + "x")).has_value());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] + 1);
    const auto corpus = Corpus::open(folder.write("changed", changed));
    EXPECT_FALSE(corpus && corpus->verify()) << at;
  }
}

TEST(DataDocuments, WeightsSayHowOftenADocumentStandsThere) {
  std::vector<Document> many;
  for (std::int32_t i = 0; i < 100; ++i) many.push_back({{i, 1}, {-100, 1}});
  const auto corpus = std::make_shared<const Corpus>(make(many));
  const auto counted = [&](double weight, std::uint64_t seed) {
    Documents documents;
    documents.add(corpus, weight, seed);
    std::vector<int> counts(100);
    for (std::int64_t i = 0; i < documents.size(); ++i)
      ++counts[static_cast<std::size_t>(documents.read(i).input_ids[0])];
    return counts;
  };
  EXPECT_EQ(counted(1, 1), std::vector<int>(100, 1));
  EXPECT_EQ(counted(3, 1), std::vector<int>(100, 3));
  const std::vector<int> half = counted(0.3, 1);
  EXPECT_EQ(std::ranges::count(half, 1), 30);
  EXPECT_EQ(std::ranges::count(half, 0), 70);
  EXPECT_EQ(half, counted(0.3, 1));
  EXPECT_NE(half, counted(0.3, 2));
  const std::vector<int> more = counted(2.5, 1);
  EXPECT_EQ(std::ranges::count(more, 3), 50);
  EXPECT_EQ(std::ranges::count(more, 2), 50);
}

TEST(DataDocuments, WhatIsTakenOutIsGoneHoweverOftenItStoodThere) {
  std::vector<Document> many;
  for (std::int32_t i = 0; i < 40; ++i) many.push_back({{i, 1}, {-100, 1}});
  const auto corpus = std::make_shared<const Corpus>(make(many));
  const auto ids = [](const Documents& documents) {
    std::multiset<std::int32_t> found;
    for (std::int64_t i = 0; i < documents.size(); ++i) found.insert(documents.read(i).input_ids[0]);
    return found;
  };
  for (const double size : {0.25, 10.0}) {
    Documents documents;
    documents.add(corpus, 2);
    const auto taken = ids(documents.take_out(size, 3)), left = ids(documents);
    EXPECT_EQ(taken.size(), 10u);
    EXPECT_EQ(left.size(), 60u);
    for (const std::int32_t id : taken) {
      EXPECT_EQ(taken.count(id), 1u);
      EXPECT_EQ(left.count(id), 0u);
    }
    Documents again;
    again.add(corpus, 2);
    EXPECT_EQ(ids(again.take_out(size, 3)), taken);
  }
  Documents two = Documents::of({many[0], many[1]});
  EXPECT_THROW(two.take_out(2, 1), UserError);
  EXPECT_EQ(two.take_out(1, 1).size(), 1);
  EXPECT_EQ(two.size(), 1);
  Documents one;  // twice the same is still one
  one.add(std::make_shared<const Corpus>(make({many[0]})), 2);
  EXPECT_THAT(inlay::testing::user_error_of([&] { one.take_out(0.5, 1); }), ::testing::HasSubstr("only one document"));
}

TEST(DataDocuments, TheFingerprintKnowsContentOrderAndWeight) {
  const Documents documents = Documents::of(three);
  EXPECT_EQ(documents.fingerprint(), Documents::of(three).fingerprint());
  std::vector<Document> other = three;
  other[2].labels[1] = ignore_label;
  EXPECT_NE(documents.fingerprint(), Documents::of(other).fingerprint());
  EXPECT_NE(documents.fingerprint(), Documents::of({three[0], three[2], three[1]}).fingerprint());
  Documents twice;
  twice.add(std::make_shared<const Corpus>(make(three)), 2);
  EXPECT_NE(documents.fingerprint(), twice.fingerprint());
  EXPECT_THAT(documents.lengths(), ElementsAre(3, 1, 2));
}

}  // namespace
}  // namespace inlay::data
