#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/view.h"
#include "io/file.h"

namespace inlay::io {

// One tensor of a file, as its header describes it.
struct TensorInfo {
  std::string name;
  std::string format_dtype;          // the format's own spelling: "BF16", "F8_E4M3"
  std::optional<DType> dtype;        // nothing for the types that Inlay has no use for
  std::vector<std::int64_t> shape;   // any number of dimensions
  std::uint64_t begin = 0, end = 0;  // bytes, from the start of the data

  std::uint64_t bytes() const { return end - begin; }
  std::string shape_text() const;  // "[3, 4]"
};

// A safetensors file, memory-mapped. The constructor believes nothing: header length, JSON, names, dtypes, shapes and
// byte ranges are checked as the format's reference implementation does (ranges cover the data exactly, without gaps or
// overlaps). Everything wrong is a UserError that names the file and the tensor. Reading is safe from several threads.
class SafetensorsFile {
 public:
  static constexpr std::uint64_t max_header_bytes = 100'000'000;

  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of their bytes
  std::vector<std::string> names() const;
  std::uint64_t data_bytes() const { return data_.size(); }

  // Null where there is no such tensor.
  const TensorInfo* find(std::string_view name) const;
  // The tensor in host memory, valid as long as this file; never absent(), even where it is empty. UserError where it
  // is missing, has more than four dimensions, or a dtype that Inlay does not know.
  ConstView tensor(std::string_view name) const;
  // The bytes as they lie in the file, aligned to nothing.
  std::span<const std::byte> bytes(const TensorInfo& info) const { return data_.subspan(info.begin, info.bytes()); }

  // Starts reading a tensor before it is needed, and gives its memory back after use. What tensor() returned stays
  // valid after drop(), save for tensors that lie unaligned in the file (they are copied, and the copy goes).
  void prefetch(std::string_view name) const;
  void drop(std::string_view name) const;

 private:
  struct Copies;

  MappedFile file_;
  std::span<const std::byte> data_;
  std::map<std::string, std::string> metadata_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // names of tensors_, whose heap blocks never move
  std::unique_ptr<Copies> copies_;
};

// The format's spelling of a dtype: "F32".
std::string_view safetensors_name_of(DType dtype);

}  // namespace inlay::io
