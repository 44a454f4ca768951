#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/console.h"
#include "gguf/numbers.h"

namespace inlay::gguf {

struct ExportOptions {
  std::filesystem::path model, output;
  std::filesystem::path adapter;     // whose changes become part of the weights; empty: none
  std::optional<NumberType> type;    // of matrices; absent: the checkpoint's own
  std::optional<std::string> pre;    // of the tokenizer (gguf/vocabulary.h)
  std::optional<std::string> title;  // general.name; absent: the folder's
};

struct ExportReport {
  std::string architecture;
  NumberType type = NumberType::f32;
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> notes;
};

// A model as one file for llama.cpp and what is built on it, with its tokenizer and chat template. A tensor at a time
// is in memory; the file appears when it is complete. With an adapter, a merged copy lies beside it meanwhile.
ExportReport export_model(const ExportOptions& options, Console& console);

}  // namespace inlay::gguf
