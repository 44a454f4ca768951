#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace inlay::data::tokenizer {

// Texts and their ids, both ways.
class Vocabulary {
 public:
  // Ids index tables here and rows of a model there: far above any model's, yet no file can ask for all memory.
  static constexpr std::int64_t max_id = (std::int64_t{1} << 22) - 1;

  void reserve(std::size_t count);
  // False where the id has another text already, or the text another id.
  bool add(std::string_view text, std::int32_t id);

  std::optional<std::int32_t> find(std::string_view text) const;
  // Nothing for an id that no text has.
  std::optional<std::string_view> text(std::int32_t id) const;
  // One more than the largest id.
  std::int32_t size() const { return static_cast<std::int32_t>(places_.size()); }

 private:
  struct Place {
    std::uint32_t begin = 0, bytes = absent;
  };
  static constexpr std::uint32_t absent = 0xFFFFFFFF;

  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  std::string texts_;          // all of them, one behind the other
  std::vector<Place> places_;  // by id
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> ids_;
};

}  // namespace inlay::data::tokenizer
