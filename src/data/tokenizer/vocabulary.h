#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace inlay::data::tokenizer {

// Texts and their ids, both ways.
class Vocabulary {
 public:
  // Ids index tables here and rows of a model there: far above any model's, yet no file can ask for all memory.
  static constexpr std::int64_t max_id = (std::int64_t{1} << 22) - 1;

  explicit Vocabulary(std::size_t expected = 0) { grow(expected); }

  // False where the id has another text already, or the text another id.
  bool add(std::string_view text, std::int32_t id);

  std::optional<std::int32_t> find(std::string_view text) const;
  // Nothing for an id that no text has.
  std::optional<std::string_view> text(std::int32_t id) const;
  std::int32_t count() const { return static_cast<std::int32_t>(count_); }
  // One more than the largest id: more than count() where ids are left out.
  std::int32_t size() const { return static_cast<std::int32_t>(places_.size()); }

 private:
  struct Place {
    std::uint32_t begin = 0, bytes = absent;
  };
  static constexpr std::uint32_t absent = 0xFFFFFFFF;

  // Of a flat hash table: looking a word up must not cost several misses of the processor's cache.
  struct Slot {
    std::uint32_t tag = 0;  // more of the hash, so that most other texts need not be looked at
    std::int32_t id = -1;   // -1: free
  };

  // The slot of the text, or the free one where it would be.
  std::size_t find_slot(std::string_view text, std::size_t hash) const;
  void grow(std::size_t count);

  std::string texts_;          // all of them, one behind the other
  std::vector<Place> places_;  // by id
  std::vector<Slot> slots_;    // a power of two, at most half of them taken
  std::size_t count_ = 0;
};

}  // namespace inlay::data::tokenizer
