#include "data/tokenizer/vocabulary.h"

#include "core/error.h"

namespace inlay::data::tokenizer {

void Vocabulary::reserve(std::size_t count) {
  ids_.reserve(count);
  places_.reserve(count);
}

bool Vocabulary::add(std::string_view text, std::int32_t id) {
  INLAY_ASSERT(id >= 0 && id <= max_id, "token id {}", id);
  if (const auto known = this->text(id)) return *known == text;
  if (!ids_.emplace(std::string(text), id).second) return false;
  const auto index = static_cast<std::size_t>(id);
  if (index >= places_.size()) places_.resize(index + 1);
  places_[index] = {static_cast<std::uint32_t>(texts_.size()), static_cast<std::uint32_t>(text.size())};
  texts_ += text;
  return true;
}

std::optional<std::int32_t> Vocabulary::find(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::string_view> Vocabulary::text(std::int32_t id) const {
  if (id < 0 || id >= size()) return std::nullopt;
  const Place place = places_[static_cast<std::size_t>(id)];
  if (place.bytes == absent) return std::nullopt;
  return std::string_view(texts_).substr(place.begin, place.bytes);
}

}  // namespace inlay::data::tokenizer
