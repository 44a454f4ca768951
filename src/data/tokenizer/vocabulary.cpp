#include "data/tokenizer/vocabulary.h"

#include <bit>
#include <functional>

#include "core/error.h"

namespace inlay::data::tokenizer {

namespace {

std::size_t hash_of(std::string_view text) { return std::hash<std::string_view>()(text); }
std::uint32_t tag_of(std::size_t hash) { return static_cast<std::uint32_t>(hash >> 32); }

}  // namespace

void Vocabulary::grow(std::size_t count) {
  slots_.assign(std::bit_ceil(2 * count + 2), {});
  for (std::int32_t id = 0; id < size(); ++id) {
    const auto known = text(id);
    if (!known) continue;
    const std::size_t hash = hash_of(*known);
    slots_[find_slot(*known, hash)] = {tag_of(hash), id};
  }
}

std::size_t Vocabulary::find_slot(std::string_view text, std::size_t hash) const {
  std::size_t at = hash & (slots_.size() - 1);
  while (slots_[at].id >= 0 && (slots_[at].tag != tag_of(hash) || *this->text(slots_[at].id) != text)) {
    at = (at + 1) & (slots_.size() - 1);
  }
  return at;
}

bool Vocabulary::add(std::string_view text, std::int32_t id) {
  INLAY_ASSERT(id >= 0 && id <= max_id, "token id {}", id);
  if (const auto known = this->text(id)) return *known == text;
  if (2 * (count_ + 1) > slots_.size()) grow(2 * count_);
  const std::size_t hash = hash_of(text);
  Slot& slot = slots_[find_slot(text, hash)];
  if (slot.id >= 0) return false;
  slot = {tag_of(hash), id};
  ++count_;
  const auto index = static_cast<std::size_t>(id);
  if (index >= places_.size()) places_.resize(index + 1);
  places_[index] = {static_cast<std::uint32_t>(texts_.size()), static_cast<std::uint32_t>(text.size())};
  texts_ += text;
  return true;
}

std::optional<std::int32_t> Vocabulary::find(std::string_view text) const {
  const Slot slot = slots_[find_slot(text, hash_of(text))];
  return slot.id < 0 ? std::nullopt : std::optional(slot.id);
}

std::optional<std::string_view> Vocabulary::text(std::int32_t id) const {
  if (id < 0 || id >= size()) return std::nullopt;
  const Place place = places_[static_cast<std::size_t>(id)];
  if (place.bytes == absent) return std::nullopt;
  return std::string_view(texts_).substr(place.begin, place.bytes);
}

}  // namespace inlay::data::tokenizer
