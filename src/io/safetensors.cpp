#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/json.h"

namespace inlay::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

struct FormatType {
  std::string_view name;
  unsigned bits;
  std::optional<DType> dtype;
};

// Every type that the format has; those without a DType can stand in a file, but not be read as a view.
constexpr std::array format_types = {
    FormatType{"F32", 32, DType::f32},
    FormatType{"BF16", 16, DType::bf16},
    FormatType{"F16", 16, DType::f16},
    FormatType{"F64", 64, DType::f64},
    FormatType{"I64", 64, DType::i64},
    FormatType{"I32", 32, DType::i32},
    FormatType{"I16", 16, DType::i16},
    FormatType{"I8", 8, DType::i8},
    FormatType{"U8", 8, DType::u8},
    FormatType{"BOOL", 8, DType::boolean},
    FormatType{"U16", 16, std::nullopt},
    FormatType{"U32", 32, std::nullopt},
    FormatType{"U64", 64, std::nullopt},
    FormatType{"C64", 64, std::nullopt},
    FormatType{"F8_E4M3", 8, std::nullopt},
    FormatType{"F8_E5M2", 8, std::nullopt},
    FormatType{"F8_E4M3FNUZ", 8, std::nullopt},
    FormatType{"F8_E5M2FNUZ", 8, std::nullopt},
    FormatType{"F8_E8M0", 8, std::nullopt},
    FormatType{"F6_E2M3", 6, std::nullopt},
    FormatType{"F6_E3M2", 6, std::nullopt},
    FormatType{"F4", 4, std::nullopt},
};

const FormatType* find_format_type(std::string_view name) {
  const auto found = std::ranges::find(format_types, name, &FormatType::name);
  return found == format_types.end() ? nullptr : &*found;
}

std::optional<std::uint64_t> byte_size(std::span<const std::int64_t> shape, unsigned bits) {
  std::uint64_t product = 1;
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(product, static_cast<std::uint64_t>(extent), &product)) return std::nullopt;
  }
  if (__builtin_mul_overflow(product, std::uint64_t{bits}, &product) || product % 8 != 0) return std::nullopt;
  return product / 8;
}

// Here 2.0 is no integer: other readers would refuse the file.
std::vector<std::int64_t> plain_integers(const Json& entry, std::string_view key) {
  auto values = entry.integers(key, non_negative_integer);
  for (const auto& value : entry.at(key).raw()) {
    if (!value.is_number_integer()) entry.fail(key, fmt::format("expected plain integers, got {}", value.dump()));
  }
  return values;
}

TensorInfo parse_tensor(const Json& entry, std::string name, std::uint64_t data_bytes) {
  TensorInfo info;
  info.name = std::move(name);
  info.format_dtype = entry.string("dtype");
  const FormatType* type = find_format_type(info.format_dtype);
  if (type == nullptr) entry.fail("dtype", fmt::format("unknown type {}", in_quotes(info.format_dtype)));
  info.dtype = type->dtype;
  info.shape = plain_integers(entry, "shape");
  const auto offsets = plain_integers(entry, "data_offsets");
  if (offsets.size() != 2) {
    entry.fail("data_offsets", fmt::format("expected [begin, end], got {} numbers", offsets.size()));
  }
  info.begin = static_cast<std::uint64_t>(offsets[0]);
  info.end = static_cast<std::uint64_t>(offsets[1]);
  if (info.begin > info.end || info.end > data_bytes) {
    entry.fail("data_offsets", fmt::format("[{}, {}] does not lie inside the file's {} bytes of data", info.begin,
                                           info.end, data_bytes));
  }
  const auto expected = byte_size(info.shape, type->bits);
  if (!expected) entry.fail("shape", fmt::format("{} of {} is not a possible size", info.shape_text(), type->name));
  if (*expected != info.bytes()) {
    entry.fail(fmt::format("{} of {} takes {} bytes, but data_offsets give it {}", info.shape_text(), type->name,
                           *expected, info.bytes()));
  }
  return info;
}

}  // namespace

std::string_view safetensors_name_of(DType dtype) {
  const auto found = std::ranges::find(format_types, std::optional(dtype), &FormatType::dtype);
  INLAY_ASSERT(found != format_types.end(), "safetensors has no {}", name_of(dtype));
  return found->name;
}

std::string TensorInfo::shape_text() const {
  std::string text = "[";
  for (std::size_t axis = 0; axis < std::min<std::size_t>(shape.size(), 16); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(shape[axis]);
  }
  return text + (shape.size() > 16 ? ", ...]" : "]");
}

// Aligned copies of tensors that lie unaligned in the file.
struct SafetensorsFile::Copies {
  std::mutex mutex;
  std::unordered_map<std::string, std::vector<std::uint64_t>> by_name;
};

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path), copies_(std::make_unique<Copies>()) {
  const std::string source = path.string();
  const std::span<const std::byte> all = file_.bytes();
  std::uint64_t header_bytes = 0;
  if (all.size() < sizeof(header_bytes)) {
    user_error("{}: not a safetensors file: {} bytes are too few for a header", source, all.size());
  }
  std::memcpy(&header_bytes, all.data(), sizeof(header_bytes));
  const std::span<const std::byte> rest = all.subspan(sizeof(header_bytes));
  if (header_bytes > max_header_bytes) {
    user_error("{}: not a safetensors file: a header of {} bytes (at most {} are allowed)", source, header_bytes,
               max_header_bytes);
  }
  if (header_bytes > rest.size()) {
    user_error("{}: truncated: the header should have {} bytes, the file ends after {} of them", source, header_bytes,
               rest.size());
  }
  data_ = rest.subspan(header_bytes);
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), header_bytes);
  if (!text.starts_with('{')) user_error("{}: not a safetensors file: the header is not a JSON object", source);
  const Json header = Json::parse(text, source);

  const nlohmann::json& entries = header.raw();
  tensors_.reserve(entries.size());
  for (const auto& item : entries.items()) {
    const std::string& name = item.key();
    if (item.value().is_null()) header.fail(name, "expected an object, got null");
    const Json entry = header.object(name);
    if (name == "__metadata__") {
      for (const std::string& key : entry.keys()) metadata_[key] = entry.string(key);
    } else {
      tensors_.push_back(parse_tensor(entry, name, data_.size()));
    }
  }

  std::ranges::sort(tensors_, [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t covered = 0;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& info : tensors_) {
    if (info.begin < covered) {
      user_error("{}: the tensors {} and {} overlap", source, in_quotes(previous->name), in_quotes(info.name));
    }
    if (info.begin > covered) {
      user_error("{}: {} bytes before the tensor {} belong to no tensor", source, info.begin - covered,
                 in_quotes(info.name));
    }
    covered = info.end;
    previous = &info;
  }
  if (covered != data_.size()) {
    user_error("{}: the last {} bytes belong to no tensor", source, data_.size() - covered);
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> result;
  for (const TensorInfo& info : tensors_) result.push_back(info.name);
  return result;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

ConstView SafetensorsFile::tensor(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) user_error("{}: has no tensor {}", path().string(), in_quotes(name));
  if (!info->dtype) {
    user_error("{}: tensor {}: Inlay does not read the type {}", path().string(), in_quotes(name), info->format_dtype);
  }
  if (info->shape.size() > max_rank) {
    user_error("{}: tensor {}: {} has {} dimensions, Inlay reads at most {}", path().string(), in_quotes(name),
               info->shape_text(), info->shape.size(), max_rank);
  }
  const void* data = data_.data() + info->begin;
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(*info->dtype) != 0) {
    const std::lock_guard lock(copies_->mutex);
    auto& copy = copies_->by_name[info->name];
    if (copy.empty()) {
      copy.resize(info->bytes() / sizeof(std::uint64_t) + 1);
      if (info->bytes() > 0) std::memcpy(copy.data(), data, info->bytes());
    }
    data = copy.data();
  }
  return ConstView(data, *info->dtype, Shape(std::span<const std::int64_t>(info->shape)));
}

void SafetensorsFile::prefetch(std::string_view name) const {
  if (const TensorInfo* info = find(name)) file_.prefetch(bytes(*info));
}

void SafetensorsFile::drop(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) return;
  file_.drop(bytes(*info));
  const std::lock_guard lock(copies_->mutex);
  copies_->by_name.erase(info->name);
}

}  // namespace inlay::io
