#include "data/dataset_files.h"

#include <glob.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include <yaml-cpp/yaml.h>

#include "core/error.h"
#include "core/text.h"
#include "data/byte_source.h"
#include "io/file.h"
#include "io/paths.h"

namespace inlay::data {

namespace fs = std::filesystem;

namespace {

bool is_data_file(const fs::path& file) {
  const std::string extension = content_extension(file);
  return extension == ".jsonl" || extension == ".json" || extension == ".parquet" || extension == ".csv" ||
         extension == ".tsv" || extension == ".txt";
}

bool is_pattern(const std::string& path) { return path.find_first_of("*?[") != path.npos; }

// What datasets of the hub have beside their data.
bool is_beside(const fs::path& file) {
  const std::string name = file.filename();
  return name.starts_with('.') || name == "dataset_infos.json" || name == "dataset_dict.json" || name == "state.json" ||
         name == "requirements.txt" || name == "LICENSE.txt" || name == "dataset_info.json";
}

// Names relative to the folder, sorted.
void list_files(const fs::path& folder, const fs::path& below, std::vector<std::string>& names) {
  for (const fs::path& entry : io::entries_of(folder / below)) {
    const std::string name = entry.filename();
    if (name.starts_with('.')) continue;
    if (io::is_folder(entry)) {
      list_files(folder, below / name, names);
    } else if (is_data_file(entry) && !is_beside(entry)) {
      names.push_back((below / name).string());
    }
  }
}

std::vector<fs::path> glob_files(const std::string& pattern) {
  glob_t found{};
  std::vector<fs::path> files;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) {
      if (io::is_file(found.gl_pathv[i])) files.emplace_back(found.gl_pathv[i]);
    }
  }
  ::globfree(&found);
  return files;
}

// "train[:20%]": the name, and what is in brackets.
std::pair<std::string, RowSlice> parse_split(const std::string& text, const std::string& where) {
  const std::size_t bracket = text.find('[');
  RowSlice slice;
  if (bracket == text.npos) return {text, slice};
  if (text.find('+') != text.npos) {
    user_error("{}: split: parts of several splits together are not supported; give each an entry of its own, got '{}'",
               where, text);
  }
  const auto fail = [&]() {
    user_error("{}: split: expected a name with a part of it, as in train[:20%] or train[100:200], got '{}'", where,
               text);
  };
  const std::string inside = text.substr(bracket + 1, text.size() - bracket - 2);
  const std::size_t colon = inside.find(':');
  if (!text.ends_with(']') || colon == inside.npos) fail();
  const auto bound = [&](std::string number) -> std::optional<RowSlice::Bound> {
    std::erase(number, ' ');
    std::erase(number, '_');
    if (number.empty()) return std::nullopt;
    RowSlice::Bound result{.percent = number.ends_with('%')};
    if (result.percent) number.pop_back();
    const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), result.value);
    if (error != std::errc() || rest != number.data() + number.size()) fail();
    return result;
  };
  slice.begin = bound(inside.substr(0, colon));
  slice.end = bound(inside.substr(colon + 1));
  return {text.substr(0, bracket), slice};
}

// "train + validation": both.
std::vector<std::string> names_of_splits(const std::string& text, const std::string& where) {
  std::vector<std::string> names = split(text, '+');
  for (std::string& name : names) {
    std::erase(name, ' ');
    if (name.empty() && names.size() > 1)
      user_error("{}: split: expected a name on both sides of +, got '{}'", where, text);
  }
  return names;
}

// Whether a file's name says that it belongs to a split: train.jsonl, train-00000-of-00002.parquet, data/train/a.json.
bool belongs_to(const std::string& file, const std::string& split) {
  const auto is_end = [](char c) { return std::string_view("-._ /").find(c) != std::string_view::npos; };
  for (std::size_t at = file.find(split); at != file.npos; at = file.find(split, at + 1)) {
    const std::size_t end = at + split.size();
    // "train" is not "train_sft".
    const bool ends = end == file.size() || (is_end(file[end]) && file[end] != '_') ||
                      (file[end] == '_' && end + 1 < file.size() && std::isdigit(file[end + 1]) != 0);
    if ((at == 0 || is_end(file[at - 1])) && ends) return true;
  }
  return false;
}

std::vector<std::string> names_of_split(const std::string& split) {
  if (split == "validation" || split == "valid" || split == "val" || split == "dev") {
    return {"validation", "valid", "val", "dev"};
  }
  if (split == "test" || split == "eval") return {"test", "testing", "eval", "evaluation"};
  if (split == "train") return {"train", "training"};
  return {split};
}

// A folder with the layout of the hub's datasets.
class Repository {
 public:
  Repository(const DatasetOptions& dataset, fs::path folder) : dataset_(dataset), folder_(std::move(folder)) {
    list_files(folder_, {}, all_);
  }

  // Of one split or, as datasets writes it, of several: train+validation.
  std::vector<fs::path> files(const std::string& splits) {
    if (all_.empty()) {
      user_error("{}: there are no .jsonl, .json, .parquet, .csv or .txt files in {}", dataset_.path, folder_.string());
    }
    std::vector<std::string> chosen;
    const auto take = [&](const std::vector<std::string>& names) {
      for (const std::string& name : names) {
        if (std::ranges::find(chosen, name) == chosen.end()) chosen.push_back(name);
      }
    };
    if (!dataset_.data_files.empty()) {
      for (const std::string& pattern : dataset_.data_files) add(chosen, pattern);
    } else {
      const YAML::Node config = read_config();
      const bool named = config.IsMap() && config["data_files"];
      for (const std::string& split : names_of_splits(splits, dataset_.path)) {
        take(named ? by_config(config["data_files"], split.empty() ? "train" : split) : by_names(split));
      }
    }
    std::vector<fs::path> files;
    for (const std::string& name : chosen) files.push_back(folder_ / name);
    return files;
  }

 private:
  void add(std::vector<std::string>& chosen, const std::string& pattern) {
    const std::size_t before = chosen.size();
    for (const std::string& name : all_) {
      const bool meant =
          is_pattern(pattern) ? matches(name, pattern) : name == pattern || name.starts_with(pattern + "/");
      if (meant && std::ranges::find(chosen, name) == chosen.end()) chosen.push_back(name);
    }
    if (chosen.size() == before) {
      user_error("{}: none of its data files is called {}; it has {}", dataset_.path, pattern, listed(all_));
    }
  }

  static std::string listed(const std::vector<std::string>& names) {
    constexpr std::size_t most = 8;
    std::vector<std::string> some(names.begin(),
                                  names.begin() + static_cast<std::ptrdiff_t>(std::min(most, names.size())));
    return join(some, ", ") + (names.size() > most ? fmt::format(" and {} more", names.size() - most) : "");
  }

  // The configuration that is meant, of those that the README.md of a dataset names between its first lines of dashes.
  YAML::Node read_config() {
    const fs::path readme = folder_ / "README.md";
    if (!io::is_file(readme)) return {};
    const std::string text = io::read_file(readme, std::size_t{16} << 20);
    const std::size_t end = text.find("\n---", 3);
    if (!text.starts_with("---") || end == text.npos) return {};
    YAML::Node configs;
    try {
      configs = YAML::Load(text.substr(3, end - 3))["configs"];
    } catch (const YAML::Exception&) {
      return {};  // it is for people first
    }
    if (!configs.IsDefined() || !configs.IsSequence()) return {};
    std::vector<std::string> names;
    YAML::Node chosen;
    for (const auto& config : configs) {
      if (!config.IsMap() || !config["config_name"]) continue;
      names.push_back(config["config_name"].Scalar());
      const bool is_default = names.back() == "default" || (config["default"] && config["default"].Scalar() == "true");
      if (dataset_.subset.empty() ? is_default : names.back() == dataset_.subset) chosen.reset(config);
    }
    if (names.size() == 1 && dataset_.subset.empty()) return configs[0];
    if (!chosen.IsMap() && !names.empty()) {
      user_error("{}: {}; set name to one of {}", dataset_.path,
                 dataset_.subset.empty() ? "it has several subsets" : "it has no subset " + dataset_.subset,
                 listed(names));
    }
    subset_is_known_ = true;
    return chosen;
  }

  static std::vector<std::string> texts(const YAML::Node& node) {
    std::vector<std::string> result;
    if (node.IsScalar()) result.push_back(node.Scalar());
    if (node.IsSequence()) {
      for (const auto& entry : node) result.push_back(entry.IsScalar() ? entry.Scalar() : "");
    }
    return result;
  }

  std::vector<std::string> by_config(const YAML::Node& data_files, const std::string& split) {
    std::vector<std::string> chosen, splits;
    const auto take = [&](const std::string& name, const YAML::Node& paths) {
      splits.push_back(name);
      if (name != split) return;
      for (const std::string& pattern : texts(paths)) add(chosen, pattern);
    };
    if (data_files.IsMap()) {
      for (const auto& item : data_files) take(item.first.Scalar(), item.second);
    } else if (data_files.IsSequence() && data_files.size() > 0 && data_files[0].IsMap()) {
      for (const auto& entry : data_files) {
        if (entry["split"] && entry["path"]) take(entry["split"].Scalar(), entry["path"]);
      }
    } else {
      take("train", data_files);
    }
    if (chosen.empty()) no_split(split, splits);
    return chosen;
  }

  std::vector<std::string> by_names(const std::string& split) {
    std::vector<std::string> names = all_;
    if (!dataset_.subset.empty() && !subset_is_known_) {
      std::erase_if(names, [&](const std::string& name) { return !belongs_to(name, dataset_.subset); });
      if (names.empty()) {
        user_error("{}: it has no subset {}; its files are {}", dataset_.path, dataset_.subset, listed(all_));
      }
    }
    const std::string wanted = split.empty() ? "train" : split;
    std::vector<std::string> chosen;
    for (const std::string& name : names) {
      const auto words = names_of_split(wanted);
      if (std::ranges::any_of(words, [&](const std::string& word) { return belongs_to(name, word); })) {
        chosen.push_back(name);
      }
    }
    if (!chosen.empty()) return chosen;
    // Files whose names tell nothing are there to be learned from.
    for (const std::string& name : names) {
      bool told = false;
      for (const char* other : {"train", "validation", "test"}) {
        for (const std::string& word : names_of_split(other)) told = told || belongs_to(name, word);
      }
      if (!told) chosen.push_back(name);
    }
    if (chosen.empty() || wanted != "train") no_split(wanted, names);
    return chosen;
  }

  [[noreturn]] void no_split(const std::string& split, const std::vector<std::string>& there) const {
    user_error("{}: it has no split {}; it has {}", dataset_.path, split, listed(there));
  }

  const DatasetOptions& dataset_;
  fs::path folder_;
  std::vector<std::string> all_;
  bool subset_is_known_ = false;
};

void refuse_parts(const DatasetOptions& d, const std::string& split, const char* what) {
  if (!d.subset.empty()) user_error("{}: name: {} has no subsets; leave it out", d.path, what);
  if (!split.empty() && split != "train") {
    user_error("{}: split: {} has no split {}; leave it out, or write train", d.path, what, split);
  }
}

}  // namespace

bool is_loader(const std::string& path) {
  return path == "json" || path == "csv" || path == "parquet" || path == "text";
}

bool RowSlice::needs_count() const {
  const auto relative = [](const std::optional<Bound>& bound) { return bound && (bound->percent || bound->value < 0); };
  return relative(begin) || relative(end);
}

std::pair<std::size_t, std::size_t> RowSlice::of(std::size_t rows) const {
  const auto place = [&](const std::optional<Bound>& bound, double otherwise) {
    double at = otherwise;
    if (bound) at = bound->percent ? std::round(bound->value * static_cast<double>(rows) / 100) : bound->value;
    if (at < 0) at += static_cast<double>(rows);
    return static_cast<std::size_t>(std::clamp(at, 0.0, static_cast<double>(rows)));
  };
  const std::size_t from = place(begin, 0), to = place(end, static_cast<double>(rows));
  return {from, std::max(from, to)};
}

DatasetFiles find_files(const DatasetOptions& d, const io::HubAccess& access) {
  DatasetFiles result;
  result.ds_type = d.ds_type;
  std::string split;
  std::tie(split, result.slice) = parse_split(d.split, d.path);
  if (is_loader(d.path) && !d.data_files.empty()) {
    // Other splits than train have no meaning among files that are named one by one.
    if (result.ds_type.empty()) result.ds_type = d.path;
    for (const std::string& file : d.data_files) {
      const std::vector<fs::path> found = is_pattern(file) ? glob_files(file) : std::vector<fs::path>{file};
      if (found.empty() || !io::is_file(found.front())) user_error("{}: no such file", file);
      result.files.insert(result.files.end(), found.begin(), found.end());
    }
  } else if (io::is_file(d.path)) {
    refuse_parts(d, split, "a file");
    result.files = {d.path};
  } else if (io::is_folder(d.path)) {
    result.files = Repository(d, d.path).files(split);
  } else if (is_pattern(d.path)) {
    refuse_parts(d, split, "a pattern");
    result.files = glob_files(d.path);
    if (result.files.empty()) user_error("{}: no file matches this pattern", d.path);
  } else if (io::exists(d.path)) {
    user_error("{}: is not a file", d.path);
  } else if (io::is_hub_name(d.path)) {
    const auto wanted = [](const std::string& file) { return is_data_file(file) || file == "README.md"; };
    result.files = Repository(d, io::fetch({io::HubKind::dataset, d.path, d.revision}, access, wanted)).files(split);
  } else {
    user_error("{}: no such file", d.path);
  }
  return result;
}

bool is_there(const DatasetOptions& dataset) {
  io::exists(dataset.path);  // what cannot be looked at is a mistake, and not absent
  try {
    return !find_files(dataset).files.empty();
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace inlay::data
