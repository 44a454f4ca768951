#include "gguf/file.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/error.h"

namespace inlay::gguf {

namespace {

constexpr std::uint64_t alignment = 32;
constexpr std::uint32_t magic = 0x46554747, version = 3;  // "GGUF"

// The format's numbers of types of values.
enum Kind : std::uint32_t { u32 = 4, i32 = 5, f32 = 6, boolean = 7, string = 8, array = 9 };

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

class Header {
 public:
  template <class Number>
  void number(Number value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof value);
  }
  void text(std::string_view value) {
    number<std::uint64_t>(value.size());
    const auto* from = reinterpret_cast<const std::byte*>(value.data());
    bytes_.insert(bytes_.end(), from, from + value.size());
  }
  void value(std::uint32_t x) { kind(u32), number(x); }
  void value(float x) { kind(f32), number(x); }
  void value(bool x) { kind(boolean), number<std::uint8_t>(x ? 1 : 0); }
  void value(const std::string& x) { kind(string), text(x); }
  void value(const std::vector<std::string>& x) {
    begin_array(string, x.size());
    for (const std::string& element : x) text(element);
  }
  void value(const std::vector<std::int32_t>& x) {
    begin_array(i32, x.size());
    for (const std::int32_t element : x) number(element);
  }
  void value(const std::vector<float>& x) {
    begin_array(f32, x.size());
    for (const float element : x) number(element);
  }
  void value(const std::vector<bool>& x) {
    begin_array(boolean, x.size());
    for (const bool element : x) number<std::uint8_t>(element ? 1 : 0);
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  void kind(Kind which) { number<std::uint32_t>(which); }
  void begin_array(Kind of, std::size_t count) { kind(array), kind(of), number<std::uint64_t>(count); }

  std::vector<std::byte> bytes_;
};

}  // namespace

void Metadata::set(std::string key, Value value) {
  INLAY_ASSERT(find(key) == nullptr, "{} is given twice", key);
  entries_.emplace_back(std::move(key), std::move(value));
}

const Value* Metadata::find(std::string_view key) const {
  for (const auto& [name, value] : entries_) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::int64_t TensorEntry::count() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

FileWriter::FileWriter(const std::filesystem::path& path, const Metadata& metadata, std::vector<TensorEntry> tensors)
    : file_(path) {
  Header header;
  header.number(magic);
  header.number(version);
  header.number<std::uint64_t>(tensors.size());
  header.number<std::uint64_t>(metadata.entries().size());
  for (const auto& [key, value] : metadata.entries()) {
    header.text(key);
    std::visit([&](const auto& x) { header.value(x); }, value);
  }
  std::uint64_t offset = 0;
  for (const TensorEntry& tensor : tensors) {
    header.text(tensor.name);
    header.number(static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent) {
      header.number<std::uint64_t>(static_cast<std::uint64_t>(*extent));
    }
    header.number(static_cast<std::uint32_t>(tensor.type));
    header.number(offset);
    const std::uint64_t bytes = bytes_of(tensor.type, tensor.count());
    ends_.push_back(offset + bytes);
    offset = aligned(offset + bytes);
  }
  header.bytes().resize(aligned(header.bytes().size()));
  for (std::uint64_t& end : ends_) end += header.bytes().size();
  total_ = header.bytes().size() + offset;
  file_.reserve(total_);
  file_.write_at(0, header.bytes());
  written_ = header.bytes().size();
}

void FileWriter::write(std::span<const std::byte> bytes) {
  INLAY_ASSERT(next_ < ends_.size() && written_ + bytes.size() <= ends_[next_], "more bytes than tensors");
  file_.write_at(written_, bytes);
  written_ += bytes.size();
  if (written_ == ends_[next_]) ++next_, pad();
}

void FileWriter::pad() {
  const std::vector<std::byte> zeros(aligned(written_) - written_);
  if (!zeros.empty()) file_.write_at(written_, zeros);
  written_ += zeros.size();
}

void FileWriter::finish() {
  INLAY_ASSERT(next_ == ends_.size(), "{} of {} tensors were written", next_, ends_.size());
  file_.commit();
}

}  // namespace inlay::gguf
