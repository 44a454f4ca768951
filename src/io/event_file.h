#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/file.h"

// TensorBoard's event files: records of TFRecord, each an Event of TensorFlow's protocol buffers.
namespace inlay::io {

std::uint32_t crc32c(std::string_view bytes);

// Length, its checksum, the bytes, theirs.
std::string tf_record(std::string_view bytes);

// Messages; time in seconds since 1970.
using Scalars = std::vector<std::pair<std::string, double>>;
std::string version_event(double time);
std::string scalars_event(double time, std::int64_t step, const Scalars& scalars);
std::string text_event(double time, std::int64_t step, std::string_view tag, std::string_view text);
// What follows begins at this step: what earlier files have from there on is forgotten.
std::string start_event(double time, std::int64_t step);

// A new file in a folder, beside those of earlier times.
class EventFile {
 public:
  EventFile(const std::filesystem::path& folder, double time);
  void write(std::string_view event) { file_.append(tf_record(event)); }

 private:
  AppendFile file_;
};

}  // namespace inlay::io
