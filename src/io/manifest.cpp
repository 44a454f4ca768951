#include "io/manifest.h"

#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/paths.h"

namespace inlay::io {
namespace {

constexpr std::int64_t version = 1;

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::uint64_t from_hex(const Json& json, std::string_view key) {
  const std::string text = json.string(key);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) {
    json.fail(key, fmt::format("expected 16 hexadecimal digits, got {}", in_quotes(text)));
  }
  return value;
}

// Of everything else in the document, written without spaces and with sorted keys.
std::string checksum_of(nlohmann::json manifest) {
  manifest.erase("xxh3");
  const std::string text = manifest.dump();
  return hex(content_hash(std::as_bytes(std::span(text))));
}

template <class... Args>
[[noreturn]] void damaged(fmt::format_string<Args...> format, Args&&... args) {
  throw DamagedFile(fmt::format(format, std::forward<Args>(args)...));
}

FileSums parse(const Json& json) {
  if (json.string("xxh3") != checksum_of(json.raw())) json.fail("it was changed after it was written");
  json.integer("version", {.min = version, .max = version});
  FileSums files;
  const Json list = json.object("files");
  for (const std::string& name : list.keys()) {
    const Json entry = list.object(name);
    files[name] = {static_cast<std::uint64_t>(entry.integer("bytes", non_negative_integer)), from_hex(entry, "xxh3")};
  }
  return files;
}

}  // namespace

void write_manifest(const std::filesystem::path& file, const FileSums& files) {
  nlohmann::json list = nlohmann::json::object();
  for (const auto& [name, sum] : files) list[name] = {{"bytes", sum.bytes}, {"xxh3", hex(sum.xxh3)}};
  nlohmann::json manifest = {{"version", version}, {"files", std::move(list)}};
  manifest["xxh3"] = checksum_of(manifest);
  write_file_atomic(file, manifest.dump(2) + "\n");
}

FileSums read_manifest(const std::filesystem::path& file) {
  try {
    return parse(Json::read(file));
  } catch (const UserError& error) {
    damaged("{} (the checksums of the folder's files: they cannot be verified)", error.what());
  }
}

FileSum sum_of(const std::filesystem::path& path, const std::function<void(std::uint64_t bytes)>& between) {
  constexpr std::size_t piece = std::size_t{64} << 20;
  const MappedFile file(path);
  Hasher hasher;
  for (auto rest = file.bytes(); !rest.empty(); rest = rest.subspan(std::min(piece, rest.size()))) {
    const auto bytes = rest.first(std::min(piece, rest.size()));
    file.prefetch(bytes);
    hasher.update(bytes);
    file.drop(bytes);
    if (between) between(bytes.size());
  }
  return {file.bytes().size(), hasher.digest()};
}

void verify_files(const std::filesystem::path& folder, const FileSums& files,
                  const std::function<void(std::uint64_t done, std::uint64_t total)>& progress) {
  std::uint64_t total = 0, done = 0;
  for (const auto& [name, sum] : files) total += sum.bytes;
  for (const auto& [name, sum] : files) {
    const std::filesystem::path path = folder / name;
    if (!is_file(path)) damaged("{}: is missing", path.string());
    if (const std::uint64_t bytes = file_bytes(path); bytes != sum.bytes) {
      damaged("{}: is damaged: {} bytes were written, but it has {}", path.string(), sum.bytes, bytes);
    }
    const FileSum found = sum_of(path, [&](std::uint64_t bytes) { progress(done += bytes, total); });
    if (found != sum) {
      damaged("{}: is damaged: its checksum is {}, but {} was written", path.string(), hex(found.xxh3), hex(sum.xxh3));
    }
  }
}

}  // namespace inlay::io
