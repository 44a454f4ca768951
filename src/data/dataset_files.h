#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "io/hub.h"

namespace inlay::data {

// Which of all rows are meant: "[:20%]", "[100:200]". Numbers below zero count from the end.
struct RowSlice {
  struct Bound {
    double value = 0;
    bool percent = false;
    bool operator==(const Bound&) const = default;
  };
  std::optional<Bound> begin, end;

  bool all() const { return !begin && !end; }
  bool needs_count() const;
  // Of so many rows.
  std::pair<std::size_t, std::size_t> of(std::size_t rows) const;
};

struct DatasetFiles {
  std::vector<std::filesystem::path> files;  // in the order in which they are read
  std::string ds_type;                       // as in DatasetOptions
  RowSlice slice;
};

// The files that a dataset means: a file; all data files of a folder, or those of a split (by names such as
// train-00000-of-00004.parquet, or by the README.md that datasets of the hub have); those that match a pattern; or the
// same of a dataset of the hub, which is in the cache or downloaded there. Without any it is a UserError that says what
// was looked for.
DatasetFiles find_files(const DatasetOptions& dataset, const io::HubAccess& access = {});

// Whether a path is the name of one of datasets' loaders, which take any files: json, csv, parquet or text.
bool is_loader(const std::string& path);

// Whether it can be read without a download.
bool is_there(const DatasetOptions& dataset);

}  // namespace inlay::data
