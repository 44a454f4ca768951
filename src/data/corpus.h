#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/batch.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/input_file.h"

namespace inlay::data {

// What became of a file's rows.
struct RowCounts {
  std::int64_t rows = 0;
  std::int64_t skipped = 0;     // bad ones, where on_bad_row is skip
  std::int64_t unlabelled = 0;  // nothing in them is to be learned; left out
};

// Documents of one file, end to end in another one, which has a name or is in memory; where they stand in it is held
// here. They are read when they are asked for, so that data larger than memory costs no more than that. Never changes;
// threads may share it. A file that was cut short meanwhile is a UserError that names it.
class Corpus {
 public:
  class Builder;

  // A file that a Builder wrote; nothing where it is of another kind or version, or not whole.
  static std::optional<Corpus> open(const std::filesystem::path& path);
  // Reads all of it and says whether its tokens, labels and weights are those that were written; between() is called
  // now and then, with the bytes that are done.
  bool verify(const std::function<void(std::uint64_t done)>& between = {}) const;

  std::int64_t size() const { return static_cast<std::int64_t>(places_.size()) - 1; }
  std::int64_t length(std::int64_t index) const { return static_cast<std::int64_t>(place(index).tokens); }
  Document read(std::int64_t index) const { return read(index, 0, length(index)); }
  // So many of its tokens, from one on.
  Document read(std::int64_t index, std::int64_t first, std::int64_t count) const;
  std::vector<std::int32_t> read_labels(std::int64_t index, std::int64_t first, std::int64_t count) const;
  std::vector<float> read_weights(std::int64_t index, std::int64_t first, std::int64_t count) const;  // empty: all 1
  // Whether all tokens, and labels that count, are of a vocabulary.
  bool within(std::int64_t vocab) const { return header_.smallest >= 0 && header_.largest < vocab; }
  const RowCounts& counts() const { return header_.counts; }
  // What another model has predicted at each token: so many of the likeliest; 0: nothing.
  std::int64_t kept() const { return static_cast<std::int64_t>(header_.kept); }
  // Of all tokens, labels and weights, and of where documents end, however a version writes them: runs that are resumed
  // know their data by it.
  std::uint64_t digest() const { return header_.meaning; }
  const io::InputFile& file() const { return file_; }
  // Of memory.
  std::size_t bytes() const {
    return places_.size() * sizeof(std::uint64_t) + (file_.is_in_memory() ? file_.size() : 0);
  }

 private:
  // Behind the header: of every document its tokens, each with a bit that says whether it is learned; where labels are
  // others than that, the labels (i32); where it has some, weights (fp32); and what is kept of another model's
  // predictions (i32, then fp32); then where each begins. All of it in the machine's byte order: the magic number does
  // not fit on a machine with another.
  struct Header {
    static constexpr std::uint64_t expected_magic = 0x34434F4459414C4Eull;  // "NLAYDOC4"

    std::uint64_t magic = expected_magic;
    std::uint64_t documents = 0, words = 0;       // words: the 32-bit values of all documents
    std::int64_t smallest = 0, largest = 0;       // of tokens, and labels that count
    std::uint64_t digest = 0, places_digest = 0;  // of what stands in the file
    std::uint64_t meaning = 0;                    // digest()
    RowCounts counts;
    std::uint64_t kept = 0;        // predictions of another model, for each token of every document
    std::uint64_t own_digest = 0;  // of what stands before it

    std::uint64_t computed_digest() const;
  };
  static_assert(sizeof(Header) == 13 * sizeof(std::uint64_t));

  struct Place {
    std::uint64_t begin, tokens;  // begin: in words
    bool labelled, weighted;      // by words of their own

    std::uint64_t labels() const { return begin + tokens; }
    std::uint64_t weights() const { return labels() + (labelled ? tokens : 0); }
    std::uint64_t kept() const { return weights() + (weighted ? tokens : 0); }
  };

  Corpus(io::InputFile file, const Header& header, std::vector<std::uint64_t> places)
      : file_(std::move(file)), header_(header), places_(std::move(places)) {}
  Place place(std::int64_t index) const;
  template <class T>
  std::vector<T> read_words(std::uint64_t begin, std::int64_t count) const;

  io::InputFile file_;
  Header header_;
  std::vector<std::uint64_t> places_;  // of each document and of the end: its first word, and two bits (corpus.cpp)
};

// Writes documents as they come, without holding them.
class Corpus::Builder {
 public:
  // What cannot be written to a file, and why. Not a mistake of the data.
  struct CannotKeep {
    std::string message;
  };

  // In memory; the name is what errors are about.
  static Builder in_memory(std::string name);
  // Into a file that is there when it is complete.
  explicit Builder(const std::filesystem::path& path);

  // All documents keep as many predictions as the first: of others the likeliest, or fewer.
  void add(const Document& document);
  std::int64_t size() const { return static_cast<std::int64_t>(places_.size()); }
  Corpus finish(const RowCounts& counts) &&;

 private:
  // What documents say: as if tokens, labels, weights and predictions were written one after the other, and then where
  // each document begins, doubled, and 1 if it is weighted.
  struct Meaning {
    io::Hasher words, places;
    std::uint64_t count = 0;  // of the words
  };

  explicit Builder(io::InputFile memory) : to_(std::move(memory)) {}
  void note_place(std::uint64_t weighted);
  void append(std::span<const std::byte> bytes);
  void flush();
  void write(std::uint64_t offset, std::span<const std::byte> bytes);

  std::variant<io::InputFile, io::AtomicFile> to_;
  Header header_;
  std::deque<std::uint64_t> places_;
  std::vector<std::byte> buffer_;
  std::uint64_t written_ = 0;
  io::Hasher hasher_;
  Meaning meaning_;
};

}  // namespace inlay::data
