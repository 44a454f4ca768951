#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/formats/format.h"

namespace inlay::data {

// Some data, and how it is to be read.
struct DatasetOptions {
  std::string path;         // a file, a folder, a pattern of files, or the name of a dataset of the hub
  std::string subset = {};  // of a dataset of the hub; empty: it has only one
  std::string split = {};   // "train", "train[:20%]"; empty: train, or all that a file holds
  std::vector<std::string> data_files = {};  // below path; empty: all that it has
  std::string ds_type = {};                  // what files are where their names do not tell: json, csv, parquet, text
  std::string revision = {};                 // of a dataset of the hub; empty: main
  double weight = 1;                         // see Documents::add
  FormatOptions format;

  bool operator==(const DatasetOptions&) const = default;
};

// What happens to rows that cannot be used: reading ends with their UserError, or they are counted and left out.
enum class BadRow : std::uint8_t { raise, skip };

// Whose tokens the documents are made of.
struct ReadContext {
  std::filesystem::path model;  // folder with tokenizer.json, and the chat template
  std::int64_t vocab = 0;       // of the model; ids beyond it are a mistake
  BadRow bad_row = BadRow::raise;
  std::filesystem::path prepared;  // folder that keeps what was read, by its content; empty: nothing is kept
  int threads = 0;                 // 0: as many as processors are granted
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};  // in bytes
  std::function<void()> waiting = {};  // now and then while another process prepares the file; may throw
  // About the first row that was skipped, and about prepared files.
  std::function<void(const std::string& message)> notice = {};
};

// The documents of the files that data/dataset_files.h finds, in their order. The same documents come out whether they
// were kept or made now, on any number of threads. Mistakes are UserErrors that name the file and the row.
std::shared_ptr<const Corpus> read_dataset(const DatasetOptions& dataset, const ReadContext& context);

}  // namespace inlay::data
