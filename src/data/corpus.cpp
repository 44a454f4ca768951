#include "data/corpus.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace inlay::data {
namespace {

// Behind the header: offsets (u64, documents + 1), tokens, labels (i32), weights (fp32, where there are any). All of it
// in the machine's byte order: the magic number does not fit on a machine with another.
struct Header {
  static constexpr std::uint64_t expected_magic = 0x31434F4459414C4Eull;  // "NLAYDOC1"

  std::uint64_t magic = expected_magic;
  std::uint64_t documents = 0, tokens = 0, weighted = 0, digest = 0, offsets_digest = 0;
  RowCounts counts;
};
static_assert(sizeof(Header) == 9 * sizeof(std::uint64_t));

std::uint64_t block_bytes(const Header& header) {
  return sizeof(Header) + (header.documents + 1) * sizeof(std::uint64_t) +
         header.tokens * (2 * sizeof(std::int32_t) + (header.weighted != 0 ? sizeof(float) : 0));
}

}  // namespace

Document DocumentView::copy() const {
  return {.input_ids = {input_ids.begin(), input_ids.end()},
          .labels = {labels.begin(), labels.end()},
          .weights = {weights.begin(), weights.end()}};
}

void Corpus::Builder::add(const Document& document) {
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  if (!document.weights.empty() && weights_.empty()) weights_.assign(ids_.size(), 1.0f);
  append(ids_, document.input_ids);
  append(labels_, document.labels);
  append(weights_, document.weights);
  if (!weights_.empty()) weights_.resize(ids_.size(), 1.0f);
  offsets_.push_back(ids_.size());
  hasher_.update(std::as_bytes(std::span(document.input_ids)));
  hasher_.update(std::as_bytes(std::span(document.labels)));
  hasher_.update(std::as_bytes(std::span(document.weights)));
}

Corpus Corpus::Builder::finish(const RowCounts& counts) && {
  Header header;
  header.documents = offsets_.size() - 1;
  header.tokens = ids_.size();
  header.weighted = weights_.empty() ? 0 : 1;
  header.digest = hasher_.digest();
  header.offsets_digest = io::content_hash(std::as_bytes(std::span(offsets_)));
  header.counts = counts;
  std::vector<std::byte> block;
  block.reserve(block_bytes(header));
  // Each part is let go as soon as it is copied, so that there is never more than one of everything and a part.
  const auto take = [&](std::span<const std::byte> bytes) { block.insert(block.end(), bytes.begin(), bytes.end()); };
  const auto take_away = [&](auto& part) {
    take(std::as_bytes(std::span(part)));
    part = {};
  };
  take(std::as_bytes(std::span(&header, 1)));
  take_away(offsets_);
  take_away(ids_);
  take_away(labels_);
  take_away(weights_);
  Corpus corpus{Block(std::move(block))};
  INLAY_ASSERT(corpus.read_header(), "a block that was just made");
  return corpus;
}

std::span<const std::byte> Corpus::block() const {
  if (const auto* bytes = std::get_if<std::vector<std::byte>>(&block_)) return *bytes;
  return std::get<io::MappedFile>(block_).bytes();
}

// A file may have been cut or come from elsewhere: whatever is read later lies inside it, or it is refused here.
bool Corpus::read_header() {
  const std::span<const std::byte> bytes = block();
  Header header;
  if (bytes.size() < sizeof(Header)) return false;
  std::memcpy(&header, bytes.data(), sizeof(Header));
  constexpr std::uint64_t most = std::uint64_t{1} << 48;
  if (header.magic != Header::expected_magic || header.documents > most || header.tokens > most ||
      block_bytes(header) != bytes.size()) {
    return false;
  }
  const std::byte* at = bytes.data() + sizeof(Header);
  const auto next = [&]<class T>(std::span<const T>& view, std::uint64_t count) {
    view = {reinterpret_cast<const T*>(at), static_cast<std::size_t>(count)};
    at += count * sizeof(T);
  };
  next(offsets_, header.documents + 1);
  next(ids_, header.tokens);
  next(labels_, header.tokens);
  if (header.weighted != 0) next(weights_, header.tokens);
  counts_ = header.counts;
  digest_ = header.digest;
  return io::content_hash(std::as_bytes(offsets_)) == header.offsets_digest && offsets_.front() == 0 &&
         offsets_.back() == header.tokens && std::ranges::is_sorted(offsets_);
}

std::optional<Corpus> Corpus::open(const std::filesystem::path& path) {
  Corpus corpus{Block(io::MappedFile(path))};
  if (!corpus.read_header()) return std::nullopt;
  return corpus;
}

void Corpus::save(const std::filesystem::path& path) const { io::write_file_atomic(path, block()); }

std::int64_t Corpus::length(std::int64_t index) const {
  const auto i = static_cast<std::size_t>(index);
  return static_cast<std::int64_t>(offsets_[i + 1] - offsets_[i]);
}

bool Corpus::within(std::int64_t vocab) const {
  const auto outside = [vocab](std::int32_t id) { return id < 0 || id >= vocab; };
  return std::ranges::none_of(ids_, outside) &&
         std::ranges::none_of(labels_, [&](std::int32_t label) { return label != ignore_label && outside(label); });
}

DocumentView Corpus::at(std::int64_t index) const {
  const std::size_t begin = offsets_[static_cast<std::size_t>(index)];
  const auto count = static_cast<std::size_t>(length(index));
  return {.input_ids = ids_.subspan(begin, count),
          .labels = labels_.subspan(begin, count),
          .weights = weights_.empty() ? weights_ : weights_.subspan(begin, count)};
}

}  // namespace inlay::data
