#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "gguf/numbers.h"
#include "io/file.h"

namespace inlay::gguf {

using Value = std::variant<std::uint32_t, float, bool, std::string, std::vector<std::string>, std::vector<std::int32_t>,
                           std::vector<float>, std::vector<bool>>;

// What a file says of a model, in order. A key is given once.
class Metadata {
 public:
  void set(std::string key, Value value);
  const Value* find(std::string_view key) const;
  const std::vector<std::pair<std::string, Value>>& entries() const { return entries_; }

 private:
  std::vector<std::pair<std::string, Value>> entries_;
};

struct TensorEntry {
  std::string name;
  NumberType type = NumberType::f32;
  std::vector<std::int64_t> shape;  // rows first, as everywhere here; the file has them the other way round

  std::int64_t columns() const { return shape.back(); }
  std::int64_t count() const;
};

// A GGUF file (version 3) that appears when it is complete. The header comes at once, and then the tensors' bytes, in
// order.
class FileWriter {
 public:
  FileWriter(const std::filesystem::path& path, const Metadata& metadata, std::vector<TensorEntry> tensors);

  std::uint64_t total_bytes() const { return total_; }
  std::uint64_t written_bytes() const { return written_; }
  // The next bytes of the next tensor.
  void write(std::span<const std::byte> bytes);
  void finish();

 private:
  void pad();

  io::AtomicFile file_;
  std::vector<std::uint64_t> ends_;  // of the tensors' bytes, without what fills up behind them
  std::size_t next_ = 0;
  std::uint64_t written_ = 0, total_ = 0;
};

}  // namespace inlay::gguf
