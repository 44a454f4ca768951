#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "core/batch.h"
#include "io/file.h"
#include "io/hash.h"

namespace inlay::data {

// What became of a file's rows.
struct RowCounts {
  std::int64_t rows = 0;
  std::int64_t skipped = 0;     // bad ones, where on_bad_row is skip
  std::int64_t unlabelled = 0;  // nothing in them is to be learned; left out
};

// A document where it lies.
struct DocumentView {
  std::span<const std::int32_t> input_ids, labels;
  std::span<const float> weights;  // empty: all of them are 1

  Document copy() const;
};

// Documents of one file, end to end in one block of bytes, which is their form on disk as well: in memory, or mapped,
// so that data larger than memory costs no more than what a batch touches. Never changes; threads may share it.
class Corpus {
 public:
  class Builder {
   public:
    void add(const Document& document);
    std::int64_t size() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
    Corpus finish(const RowCounts& counts) &&;

   private:
    std::vector<std::uint64_t> offsets_ = {0};
    std::vector<std::int32_t> ids_, labels_;
    std::vector<float> weights_;  // empty until a document has some
    io::Hasher hasher_;
  };

  // A file that save() wrote; nothing where it is of another kind or version, or not whole.
  static std::optional<Corpus> open(const std::filesystem::path& path);
  void save(const std::filesystem::path& path) const;

  std::int64_t size() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  std::int64_t length(std::int64_t index) const;
  DocumentView at(std::int64_t index) const;
  // Whether all tokens, and labels that count, are of a vocabulary.
  bool within(std::int64_t vocab) const;
  const RowCounts& counts() const { return counts_; }
  std::uint64_t digest() const { return digest_; }  // of all tokens, labels and weights
  std::size_t bytes() const { return block().size(); }

 private:
  using Block = std::variant<std::vector<std::byte>, io::MappedFile>;

  explicit Corpus(Block block) : block_(std::move(block)) {}
  std::span<const std::byte> block() const;
  bool read_header();

  Block block_;
  std::span<const std::uint64_t> offsets_;
  std::span<const std::int32_t> ids_, labels_;
  std::span<const float> weights_;
  RowCounts counts_;
  std::uint64_t digest_ = 0;
};

}  // namespace inlay::data
