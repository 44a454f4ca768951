#include "data/documents.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/philox.h"

namespace inlay::data {

Documents Documents::of(const std::vector<Document>& documents) {
  Corpus::Builder builder = Corpus::Builder::in_memory("documents");
  for (const Document& document : documents) builder.add(document);
  Documents result;
  result.add(
      std::make_shared<const Corpus>(std::move(builder).finish({.rows = static_cast<std::int64_t>(documents.size())})));
  return result;
}

void Documents::add(std::shared_ptr<const Corpus> corpus, double weight, std::uint64_t seed) {
  INLAY_ASSERT(corpora_.size() < 1u << 16, "{} files of documents", corpora_.size());
  const auto number = static_cast<std::uint32_t>(corpora_.size());
  const auto count = static_cast<std::size_t>(corpus->size());
  const double rest = weight - std::floor(weight);
  const auto chosen = static_cast<std::size_t>(std::llround(rest * static_cast<double>(count)));
  const auto take = [&](std::uint64_t document) { places_.push_back(Place::of(number, document)); };
  places_.reserve(places_.size() + static_cast<std::size_t>(std::floor(weight)) * count + chosen);
  for (double times = 1; times <= weight; ++times) {
    for (std::uint64_t document = 0; document < count; ++document) take(document);
  }
  std::vector<std::uint64_t> all(chosen > 0 ? count : 0);
  std::iota(all.begin(), all.end(), 0);
  const Philox philox{seed};
  for (std::size_t i = 0; i < chosen; ++i) {
    std::swap(all[i], all[i + random_below(philox, i, number, count - i)]);
  }
  all.resize(chosen);
  std::ranges::sort(all);
  std::ranges::for_each(all, take);
  corpora_.push_back(std::move(corpus));
}

Documents Documents::take_out(double size, std::uint64_t seed) {
  std::vector<Place> distinct = places_;
  std::ranges::sort(distinct);
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  if (distinct.size() < 2) user_error("val_set_size: there is only one document, and it is needed for training");
  const auto most = static_cast<double>(distinct.size() - 1);
  if (size > most) {
    user_error("val_set_size: {:g} of {} documents would leave none to learn from", size, distinct.size());
  }
  const double wanted = size < 1 ? size * static_cast<double>(distinct.size()) : size;
  const auto count = static_cast<std::size_t>(std::clamp(std::round(wanted), 1.0, most));
  const Philox philox{seed};
  constexpr std::uint64_t stream = 1u << 20;  // none of those of add()
  for (std::size_t i = 0; i < count; ++i) {
    std::swap(distinct[i], distinct[i + random_below(philox, i, stream, distinct.size() - i)]);
  }
  distinct.resize(count);
  std::ranges::sort(distinct);
  std::erase_if(places_, [&](const Place& place) { return std::ranges::binary_search(distinct, place); });
  Documents taken;
  taken.corpora_ = corpora_;
  taken.places_ = std::move(distinct);
  return taken;
}

Document Documents::read(std::int64_t index) const {
  const Place& place = places_[static_cast<std::size_t>(index)];
  return with_reference(corpora_[place.corpus()]->read(place.document()), index);
}

Document Documents::read(std::int64_t index, std::int64_t first, std::int64_t count) const {
  const Place& place = places_[static_cast<std::size_t>(index)];
  return with_reference(corpora_[place.corpus()]->read(place.document(), first, count), index);
}

void Documents::set_reference(std::vector<std::vector<float>> log_probs) {
  INLAY_ASSERT(std::ssize(log_probs) == size(), "{} documents with a reference, of {}", log_probs.size(), size());
  reference_ = std::move(log_probs);
}

Document Documents::with_reference(Document document, std::int64_t index) const {
  if (!reference_.empty()) document.reference = reference_[static_cast<std::size_t>(index)];
  return document;
}

std::vector<std::int32_t> Documents::read_labels(std::int64_t index, std::int64_t first, std::int64_t count) const {
  const Place& place = places_[static_cast<std::size_t>(index)];
  return corpora_[place.corpus()]->read_labels(place.document(), first, count);
}

std::vector<float> Documents::read_weights(std::int64_t index, std::int64_t first, std::int64_t count) const {
  const Place& place = places_[static_cast<std::size_t>(index)];
  return corpora_[place.corpus()]->read_weights(place.document(), first, count);
}

std::vector<std::int64_t> Documents::lengths() const {
  std::vector<std::int64_t> lengths;
  lengths.reserve(places_.size());
  for (const Place& place : places_) lengths.push_back(corpora_[place.corpus()]->length(place.document()));
  return lengths;
}

std::int64_t Documents::kept() const {
  std::int64_t most = 0;
  for (const auto& corpus : corpora_) most = std::max(most, corpus->kept());
  return most;
}

std::vector<Document> Documents::read_all() const {
  std::vector<Document> result;
  result.reserve(places_.size());
  for (std::int64_t i = 0; i < size(); ++i) result.push_back(read(i));
  return result;
}

std::string Documents::fingerprint() const {
  io::Hasher hasher;
  for (const auto& corpus : corpora_) {
    const std::uint64_t digest = corpus->digest();
    hasher.update(std::as_bytes(std::span(&digest, 1)));
  }
  for (const Place& place : places_) {
    const std::uint64_t both[] = {place.corpus(), static_cast<std::uint64_t>(place.document())};
    hasher.update(std::as_bytes(std::span(both)));
  }
  return fmt::format("{:016x}-{}", hasher.digest(), places_.size());
}

std::size_t Documents::bytes() const {
  std::size_t sum = places_.size() * sizeof(Place);
  for (const auto& corpus : corpora_) sum += corpus->bytes();
  return sum;
}

}  // namespace inlay::data
