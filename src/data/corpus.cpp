#include "data/corpus.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace inlay::data {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// A document's first word, and which words of its own it has beside the tokens.
constexpr std::uint64_t labelled_bit = 1, weighted_bit = 2;
std::uint64_t place_of(std::uint64_t word, std::uint64_t bits) { return word << 2 | bits; }
std::uint64_t word_place(std::uint64_t place) { return place >> 2; }

// A token, and whether it is learned. Tokens are not negative where a corpus is used (see within()).
constexpr std::uint32_t learned_bit = 0x80000000u;
std::uint32_t token_word(std::int32_t id, bool learned) {
  return (static_cast<std::uint32_t>(id) & ~learned_bit) | (learned ? learned_bit : 0);
}
std::int32_t token_of(std::uint32_t word) { return static_cast<std::int32_t>(word & ~learned_bit); }
std::int32_t label_of(std::uint32_t word) { return (word & learned_bit) != 0 ? token_of(word) : ignore_label; }

// Whether every label is its token, or says that nothing is learned.
bool has_plain_labels(const Document& document) {
  return std::ranges::equal(document.input_ids, document.labels, [](std::int32_t id, std::int32_t label) {
    return id >= 0 && (label == id || label == ignore_label);
  });
}

std::vector<std::int32_t> changed(const std::vector<std::uint32_t>& words, std::int32_t (*change)(std::uint32_t)) {
  std::vector<std::int32_t> result(words.size());
  std::ranges::transform(words, result.begin(), change);
  return result;
}

// As many predictions of each of so many tokens: the likeliest come first.
KeptPredictions resized(const KeptPredictions& from, std::size_t tokens, std::size_t count) {
  const auto own = static_cast<std::size_t>(from.per_token);
  KeptPredictions result{.per_token = static_cast<std::int64_t>(count),
                         .ids = std::vector<std::int32_t>(tokens * count, -1),
                         .log_probs = std::vector<float>(tokens * count, 0.0f)};
  for (std::size_t t = 0; t < tokens && own > 0; ++t) {
    std::copy_n(from.ids.data() + t * own, std::min(own, count), result.ids.data() + t * count);
    std::copy_n(from.log_probs.data() + t * own, std::min(own, count), result.log_probs.data() + t * count);
  }
  return result;
}

io::AtomicFile created(const std::filesystem::path& path) {
  std::error_code ignored;  // writing will tell
  std::filesystem::create_directories(path.parent_path(), ignored);
  try {
    return io::AtomicFile(path);
  } catch (const UserError& error) {
    throw Corpus::Builder::CannotKeep{error.what()};
  }
}

}  // namespace

std::uint64_t Corpus::Header::computed_digest() const {
  return io::content_hash(std::as_bytes(std::span(this, 1)).first(offsetof(Header, own_digest)));
}

Corpus::Place Corpus::place(std::int64_t index) const {
  const std::uint64_t from = places_[static_cast<std::size_t>(index)],
                      to = places_[static_cast<std::size_t>(index) + 1];
  const bool labelled = (from & labelled_bit) != 0, weighted = (from & weighted_bit) != 0;
  const std::uint64_t words = 1 + (labelled ? 1 : 0) + (weighted ? 1 : 0) + 2 * header_.kept;
  return {word_place(from), (word_place(to) - word_place(from)) / words, labelled, weighted};
}

template <class T>
std::vector<T> Corpus::read_words(std::uint64_t begin, std::int64_t count) const {
  static_assert(sizeof(T) == 4);
  std::vector<T> words(static_cast<std::size_t>(count));
  file_.read_at(sizeof(Header) + 4 * begin, std::as_writable_bytes(std::span(words)));
  return words;
}

Document Corpus::read(std::int64_t index, std::int64_t first, std::int64_t count) const {
  const Place at = place(index);
  const auto from = static_cast<std::uint64_t>(first);
  const auto words = read_words<std::uint32_t>(at.begin + from, count);
  Document document{
      .input_ids = changed(words, token_of),
      .labels = at.labelled ? read_words<std::int32_t>(at.labels() + from, count) : changed(words, label_of)};
  document.weights = read_weights(index, first, count);
  if (const std::int64_t kept = this->kept(); kept > 0) {
    const std::uint64_t ids = at.kept() + from * header_.kept;
    document.kept = {.per_token = kept,
                     .ids = read_words<std::int32_t>(ids, count * kept),
                     .log_probs = read_words<float>(ids + header_.kept * at.tokens, count * kept)};
  }
  return document;
}

std::vector<std::int32_t> Corpus::read_labels(std::int64_t index, std::int64_t first, std::int64_t count) const {
  const Place at = place(index);
  const auto from = static_cast<std::uint64_t>(first);
  if (at.labelled) return read_words<std::int32_t>(at.labels() + from, count);
  return changed(read_words<std::uint32_t>(at.begin + from, count), label_of);
}

std::vector<float> Corpus::read_weights(std::int64_t index, std::int64_t first, std::int64_t count) const {
  const Place at = place(index);
  if (!at.weighted) return {};
  return read_words<float>(at.weights() + static_cast<std::uint64_t>(first), count);
}

// A file may have been cut or come from elsewhere: whatever is read later lies inside it, or it is refused here.
std::optional<Corpus> Corpus::open(const std::filesystem::path& path) {
  io::InputFile file(path);
  Header header;
  if (file.size() < sizeof(Header)) return std::nullopt;
  file.read_at(0, std::as_writable_bytes(std::span(&header, 1)));
  constexpr std::uint64_t most = std::uint64_t{1} << 48;
  if (header.magic != Header::expected_magic || header.own_digest != header.computed_digest() ||
      header.documents > most || header.words > most || header.kept > 1024 ||
      file.size() != sizeof(Header) + 4 * header.words + 8 * (header.documents + 1)) {
    return std::nullopt;
  }
  std::vector<std::uint64_t> places(header.documents + 1);
  file.read_at(sizeof(Header) + 4 * header.words, std::as_writable_bytes(std::span(places)));
  if (io::content_hash(bytes_of(places)) != header.places_digest) return std::nullopt;
  return Corpus(std::move(file), header, std::move(places));
}

bool Corpus::verify(const std::function<void(std::uint64_t done)>& between) const {
  return io::content_hash(file_, sizeof(Header), sizeof(Header) + 4 * header_.words, between) == header_.digest;
}

Corpus::Builder Corpus::Builder::in_memory(std::string name) {
  Builder builder(io::InputFile::in_memory(std::move(name)));
  builder.append(std::as_bytes(std::span(&builder.header_, 1)));  // its place
  return builder;
}

Corpus::Builder::Builder(const std::filesystem::path& path) : to_(created(path)), written_(sizeof(Header)) {}

void Corpus::Builder::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (auto* memory = std::get_if<io::InputFile>(&to_)) return memory->append(bytes);
  try {
    std::get<io::AtomicFile>(to_).write_at(offset, bytes);
  } catch (const UserError& error) {
    throw CannotKeep{error.what()};
  }
}

void Corpus::Builder::flush() {
  write(written_, buffer_);
  written_ += buffer_.size();
  buffer_.clear();
}

void Corpus::Builder::append(std::span<const std::byte> bytes) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (buffer_.size() >= buffer_bytes) flush();
}

void Corpus::Builder::note_place(std::uint64_t weighted) {
  const std::uint64_t place = meaning_.count << 1 | weighted;
  meaning_.places.update(std::as_bytes(std::span(&place, 1)));
}

void Corpus::Builder::add(const Document& document) {
  const bool labelled = !has_plain_labels(document);
  places_.push_back(
      place_of(header_.words, (labelled ? labelled_bit : 0) | (document.weights.empty() ? 0 : weighted_bit)));
  const auto add_words = [&](const auto& words) {
    hasher_.update(bytes_of(words));
    append(bytes_of(words));
    header_.words += words.size();
  };
  note_place(document.weights.empty() ? 0 : 1);
  const auto note = [&](const auto& words) {
    meaning_.words.update(bytes_of(words));
    meaning_.count += words.size();
  };
  note(document.input_ids);
  note(document.labels);
  note(document.weights);
  std::vector<std::uint32_t> tokens(document.input_ids.size());
  std::ranges::transform(document.input_ids, document.labels, tokens.begin(),
                         [](std::int32_t id, std::int32_t label) { return token_word(id, is_label(label)); });
  add_words(tokens);
  if (labelled) add_words(document.labels);
  add_words(document.weights);
  if (header_.documents == 0) header_.kept = static_cast<std::uint64_t>(document.kept.per_token);
  if (header_.kept > 0) {
    const KeptPredictions kept = resized(document.kept, document.input_ids.size(), header_.kept);
    add_words(kept.ids);
    add_words(kept.log_probs);
    note(kept.ids);
    note(kept.log_probs);
  }
  const auto count_in = [&](std::int32_t id) {
    header_.smallest = std::min<std::int64_t>(header_.smallest, id);
    header_.largest = std::max<std::int64_t>(header_.largest, id);
  };
  for (const std::int32_t id : document.input_ids) count_in(id);
  for (const std::int32_t label : document.labels) {
    if (is_label(label)) count_in(label);
  }
  ++header_.documents;
}

Corpus Corpus::Builder::finish(const RowCounts& counts) && {
  std::vector<std::uint64_t> places;
  places.reserve(places_.size() + 1);
  for (; !places_.empty(); places_.pop_front()) places.push_back(places_.front());  // never twice in memory
  places.push_back(place_of(header_.words, 0));
  header_.counts = counts;
  header_.digest = hasher_.digest();
  header_.places_digest = io::content_hash(bytes_of(places));
  note_place(0);
  const std::uint64_t meant[] = {meaning_.words.digest(), meaning_.places.digest()};
  header_.meaning = io::content_hash(std::as_bytes(std::span(meant)));
  header_.own_digest = header_.computed_digest();
  flush();
  if (auto* memory = std::get_if<io::InputFile>(&to_)) return Corpus(std::move(*memory), header_, std::move(places));
  auto& file = std::get<io::AtomicFile>(to_);
  write(written_, bytes_of(places));
  write(0, std::as_bytes(std::span(&header_, 1)));
  try {
    file.commit();
  } catch (const UserError& error) {
    throw CannotKeep{error.what()};
  }
  return Corpus(io::InputFile(file.path()), header_, std::move(places));
}

}  // namespace inlay::data
