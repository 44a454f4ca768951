#include "options/paths.h"

#include <functional>

#include "core/environment.h"
#include "core/error.h"
#include "data/dataset_files.h"
#include "io/hub.h"
#include "io/paths.h"

namespace inlay::options {

namespace fs = std::filesystem;

namespace {

using Use = PathUse;
using Change = std::function<void(std::string& path, Use use)>;

void each_of_dataset(data::DatasetOptions& dataset, const Change& change) {
  if (data::is_loader(dataset.path) && !dataset.data_files.empty()) {
    for (std::string& file : dataset.data_files) change(file, Use::read);
  } else {
    change(dataset.path, Use::read);  // data_files are below it
  }
  change(dataset.format.chat_template, Use::read);
}

// The paths, or words in their place, that a key holds.
void each_path(TrainOptions& o, const std::string& key, const Change& change) {
  if (key == "base_model") change(o.base_model, Use::read);
  if (key == "output_dir") change(o.output_dir, Use::written);
  if (key == "chat_template") change(o.chat_template, Use::read);
  if (key == "lora_model_dir") change(o.adapter.model_dir, Use::read);
  if (key == "kd_teacher") change(o.distillation.teacher, Use::read);
  if (key == "dataset_prepared_path" && o.dataset_prepared_path != "auto" && o.dataset_prepared_path != "off") {
    change(o.dataset_prepared_path, Use::written);
  }
  if (key == "memory.disk" && o.memory.disk != "off") change(o.memory.disk, Use::written);
  if (key == "osft.cache" && o.osft.cache != "auto" && o.osft.cache != "off") change(o.osft.cache, Use::written);
  if (key == "osft.calibration.data") {
    for (std::string& file : o.osft.calibration.data) change(file, Use::read);
  }
  if (key == "datasets" || key == "test_datasets") {
    for (data::DatasetOptions& dataset : key == "datasets" ? o.datasets : o.test_datasets) {
      each_of_dataset(dataset, change);
    }
  }
}

constexpr const char* keys_of_paths[] = {"base_model",
                                         "output_dir",
                                         "chat_template",
                                         "lora_model_dir",
                                         "kd_teacher",
                                         "memory.disk",
                                         "dataset_prepared_path",
                                         "osft.cache",
                                         "osft.calibration.data",
                                         "datasets",
                                         "test_datasets"};

bool is_pattern(const std::string& path) { return path.find_first_of("*?[") != path.npos; }

}  // namespace

bool is_found(const std::string& path) {
  return io::exists(is_pattern(path) ? fs::path(path.substr(0, path.find_first_of("*?["))).parent_path()
                                     : fs::path(path));
}

std::string with_home(const std::string& path) {
  const auto home = path.starts_with("~/") ? environment("HOME") : std::nullopt;
  return home ? *home + path.substr(1) : path;
}

std::string located(const std::string& given, PathUse use, const fs::path& folder, const std::string& key,
                    std::vector<std::string>& notes) {
  const std::string path = with_home(given);
  if (path.empty() || fs::path(path).is_absolute()) return path;
  const std::string there = (folder / path).lexically_normal().string();
  if (use == Use::written || is_found(there)) return there;
  if (is_pattern(path) || io::is_hub_name(path)) return path;
  if (!io::exists(path)) {
    // Whoever misses a file says where it was looked for; a word such as chatml is none.
    const bool is_file = path.find('/') != path.npos || fs::path(path).has_extension();
    return is_file ? there : path;
  }
  notes.push_back(
      fmt::format("{}: {} is not in {}, so the one in the working directory is used", key, path, folder.string()));
  return path;
}

void locate(TrainOptions& options, const std::string& key, const fs::path& folder) {
  each_path(options, key, [&](std::string& path, Use use) {
    path = folder.empty() ? with_home(path) : located(path, use, folder, key, options.notes);
  });
}

TrainOptions with_absolute_paths(TrainOptions options) {
  for (const char* key : keys_of_paths) {
    each_path(options, key, [&](std::string& path, Use use) {
      std::error_code error;
      const fs::path whole = fs::absolute(path, error).lexically_normal();
      if (!error && !path.empty() && (use == Use::written || is_found(path))) path = whole.string();
    });
  }
  return options;
}

}  // namespace inlay::options
