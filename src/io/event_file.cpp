#include "io/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>

#include <fmt/format.h>

#include "io/paths.h"

namespace inlay::io {

namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82F63B78u : 0);  // Castagnoli's, reflected
    table[byte] = value;
  }
  return table;
}

template <class Bits>
void add_little_endian(std::string& out, Bits bits) {
  for (std::size_t i = 0; i < sizeof(Bits); ++i) out += static_cast<char>(bits >> 8 * i & 0xff);
}

// So that the checksum of bytes that hold checksums is not weak, they are kept turned and shifted.
std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8u; }

// Protocol buffers: fields with a number and a kind, in the order of the numbers.
class Message {
 public:
  Message& varint(int field, std::uint64_t value) {
    key(field, 0);
    add_varint(value);
    return *this;
  }
  Message& f64(int field, double value) {
    key(field, 1);
    add_little_endian(bytes_, std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  Message& f32(int field, float value) {
    key(field, 5);
    add_little_endian(bytes_, std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  Message& text(int field, std::string_view value) {
    key(field, 2);
    add_varint(value.size());
    bytes_ += value;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, int kind) { add_varint(static_cast<std::uint64_t>(field << 3 | kind)); }
  void add_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// Numbers as in event.proto; what is 0 is left out there.
Message event(double time, std::int64_t step) {
  Message message;
  if (time != 0) message.f64(1, time);
  if (step != 0) message.varint(2, static_cast<std::uint64_t>(step));
  return message;
}
constexpr int event_version = 3, event_summary = 5, event_session = 7;
constexpr int summary_value = 1, value_tag = 1, value_number = 2, value_tensor = 8, value_metadata = 9;

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> table = crc_table();
  std::uint32_t crc = 0xffffffffu;
  for (const char c : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::string tf_record(std::string_view bytes) {
  std::string out;
  add_little_endian(out, static_cast<std::uint64_t>(bytes.size()));
  add_little_endian(out, masked(crc32c(out)));
  out += bytes;
  add_little_endian(out, masked(crc32c(bytes)));
  return out;
}

std::string version_event(double time) { return event(time, 0).text(event_version, "brain.Event:2").bytes(); }

std::string scalars_event(double time, std::int64_t step, const Scalars& scalars) {
  Message summary;
  for (const auto& [tag, value] : scalars) {
    summary.text(summary_value, Message().text(value_tag, tag).f32(value_number, static_cast<float>(value)).bytes());
  }
  return event(time, step).text(event_summary, summary.bytes()).bytes();
}

std::string text_event(double time, std::int64_t step, std::string_view tag, std::string_view text) {
  constexpr int tensor_dtype = 1, tensor_shape = 2, tensor_strings = 8, string_dtype = 7;
  const Message one_dimension = Message().text(2, Message().varint(1, 1).bytes());
  const Message tensor =
      Message().varint(tensor_dtype, string_dtype).text(tensor_shape, one_dimension.bytes()).text(tensor_strings, text);
  const Message plugin = Message().text(1, Message().text(1, "text").bytes());
  const Message value =
      Message().text(value_tag, tag).text(value_tensor, tensor.bytes()).text(value_metadata, plugin.bytes());
  return event(time, step).text(event_summary, Message().text(summary_value, value.bytes()).bytes()).bytes();
}

std::string start_event(double time, std::int64_t step) {
  constexpr int status = 1, start = 1;
  return event(time, step).text(event_session, Message().varint(status, start).bytes()).bytes();
}

namespace {

// TensorBoard takes every file with "tfevents" in its name, in the order of the names.
std::filesystem::path new_file(const std::filesystem::path& folder, double time) {
  create_folders(folder);
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  for (int number = 0;; ++number) {
    std::filesystem::path path =
        folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}", static_cast<long long>(time),
                             host[0] != '\0' ? host : "localhost", ::getpid(), number);
    if (!io::exists(path)) return path;
  }
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, double time) : file_(new_file(folder, time)) {
  write(version_event(time));
}

}  // namespace inlay::io
