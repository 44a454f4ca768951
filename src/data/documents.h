#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/corpus.h"

namespace inlay::data {

// What a run reads: the documents of several files, one after the other.
class Documents {
 public:
  Documents() = default;
  static Documents of(const std::vector<Document>& documents);

  // weight: how often each document stands in it. Of a fraction, as many documents as it makes are chosen by the seed
  // (1.5: all of them, and half of them once more).
  void add(std::shared_ptr<const Corpus> corpus, double weight = 1, std::uint64_t seed = 0);

  const Corpus& corpus(std::size_t index) const { return *corpora_[index]; }  // in the order in which they were added
  // Takes documents out, chosen by the seed, however often they stand in it: `size` of them, or as many as that share
  // makes where it is below 1. At least one is left: taking from a single one is a UserError.
  Documents take_out(double size, std::uint64_t seed);

  std::int64_t size() const { return static_cast<std::int64_t>(places_.size()); }
  Document read(std::int64_t index) const;
  // A part of one, and its labels or weights alone.
  Document read(std::int64_t index, std::int64_t first, std::int64_t count) const;
  std::vector<std::int32_t> read_labels(std::int64_t index, std::int64_t first, std::int64_t count) const;
  std::vector<float> read_weights(std::int64_t index, std::int64_t first, std::int64_t count) const;  // empty: all 1
  std::vector<std::int64_t> lengths() const;
  // Predictions of another model that each token has at most.
  std::int64_t kept() const;
  // Of each document, what the reference model says of its sequences: whole documents come with it from here on.
  void set_reference(std::vector<std::vector<float>> log_probs);
  // All of them, in memory.
  std::vector<Document> read_all() const;
  // Different for other documents, or another order of them.
  std::string fingerprint() const;
  // Of memory: documents that are in files stay there.
  std::size_t bytes() const;

 private:
  // A document of a corpus, in one word: there may be tens of millions.
  struct Place {
    std::uint64_t bits;  // the corpus in the upper 16
    static Place of(std::uint64_t corpus, std::uint64_t document) { return {corpus << 48 | document}; }
    std::uint64_t corpus() const { return bits >> 48; }
    std::int64_t document() const { return static_cast<std::int64_t>(bits & ((std::uint64_t{1} << 48) - 1)); }
    auto operator<=>(const Place&) const = default;
  };
  Document with_reference(Document document, std::int64_t index) const;

  std::vector<std::shared_ptr<const Corpus>> corpora_;
  std::vector<Place> places_;
  std::vector<std::vector<float>> reference_;  // empty: unknown
};

}  // namespace inlay::data
