#include "options/import_writer.h"

#include <algorithm>

#include "core/problems.h"
#include "data/dataset_files.h"
#include "io/hub.h"
#include "jinja/known_templates.h"
#include "options/paths.h"
#include "options/run_needs.h"
#include "options/train_options.h"

namespace inlay::options::importing {

namespace fs = std::filesystem;

namespace {

// What inlay train would say of a result.
std::vector<std::string> problems_of(const std::string& yaml) {
  try {
    parse_options(yaml, "the result", {});
    return {};
  } catch (const SeveralProblems& problems) {
    return problems.each;
  } catch (const UserError& error) {
    return {error.what()};
  }
}

// Paths that count from another folder now.
class PathMover {
 public:
  PathMover(const std::vector<fs::path>& from, const std::optional<fs::path>& to, Imported& result)
      : from_(from), to_(to), result_(result) {}

  std::string path(const std::string& key, const std::string& given) {
    if (given.empty() || fs::path(given).is_absolute() || given.starts_with("~/")) return given;
    for (const fs::path& folder : from_) {
      if (is_found((folder / given).string())) return moved(key, given, folder);
    }
    if (!io::is_hub_name(given) && to_ && whole(*to_) != whole(from_.front())) {
      result_.open.push_back(fmt::format("{}: {} is not in {}; it is looked for in {} now", key, given,
                                         whole(from_.front()).string(), whole(*to_).string()));
    }
    return given;
  }

  std::string chat_template(const std::string& key, const std::string& given) {
    if (given.starts_with("tokenizer_default") || jinja::known_template(given)) return given;
    const std::size_t before = result_.open.size();
    const std::string result = path(key, given);
    const auto has = [&](const fs::path& folder) { return is_found((folder / given).string()); };
    if (std::ranges::any_of(from_, has)) return result;
    result_.open.resize(before);  // one remark is enough
    result_.open.push_back(option::problem_of_template(given));
    return result;
  }

  YAML::Node dataset(const std::string& key, const YAML::Node& entry) {
    if (entry.IsScalar()) return YAML::Node(path(key, entry.Scalar()));
    YAML::Node result(YAML::NodeType::Map);
    if (!entry.IsMap()) return entry;
    const YAML::Node path_of = entry["path"];
    const bool loader = path_of && path_of.IsScalar() && data::is_loader(path_of.Scalar()) && entry["data_files"];
    for (const auto& item : entry) {
      const std::string name = item.first.Scalar(), full = key + "." + name;
      if (name == (loader ? "data_files" : "path")) {
        result[name] = paths(full, item.second);
      } else if (name == "chat_template" && item.second.IsScalar()) {
        result[name] = chat_template(full, item.second.Scalar());
      } else {
        result[name] = item.second;
      }
    }
    return result;
  }

  // What counts from the new file's folder, which is not known.
  void say_what_is_open() {
    if (unmoved_.empty()) return;
    result_.open.push_back(fmt::format("relative paths are relative to the folder that the new file is put into: {}",
                                       join(unmoved_, ", ")));
  }

 private:
  // Links are followed in folders, and not in what is in them: a model may be a link.
  static fs::path whole(const fs::path& folder) {
    std::error_code error;
    const fs::path result = fs::weakly_canonical(fs::current_path(error) / folder, error);
    return error ? folder : result;
  }

  std::string moved(const std::string& key, const std::string& given, const fs::path& folder) {
    if (!to_) {
      if (std::ranges::find(unmoved_, given) == unmoved_.end()) unmoved_.push_back(given);
      return given;
    }
    const fs::path there = (whole(folder) / given).lexically_normal();
    if (there == (whole(*to_) / given).lexically_normal()) return given;
    const std::string result = there.lexically_relative(whole(*to_)).string();
    result_.translated.push_back(fmt::format("{}: {} is {} from the new file's folder", key, given, result));
    return result;
  }

  YAML::Node paths(const std::string& key, const YAML::Node& value) {
    if (value.IsScalar()) return YAML::Node(path(key, value.Scalar()));
    if (!value.IsSequence()) return value;
    YAML::Node result(YAML::NodeType::Sequence);
    for (const auto& one : value) result.push_back(paths(key, one));
    return result;
  }

  const std::vector<fs::path>& from_;
  const std::optional<fs::path>& to_;
  Imported& result_;
  std::vector<std::string> unmoved_;
};

}  // namespace

std::string Writer::text() const {
  YAML::Emitter out;
  out << YAML::BeginMap;
  std::vector<std::string> done;
  for (const auto& [key, value] : keys_) {
    const std::string section = key.substr(0, key.find('.'));
    if (section == key) {
      out << YAML::Key << key << YAML::Value << value;
      continue;
    }
    if (std::ranges::find(done, section) != done.end()) continue;
    done.push_back(section);
    out << YAML::Key << section << YAML::Value << YAML::BeginMap;
    for (const auto& [other, nested] : keys_) {
      if (other.starts_with(section + "."))
        out << YAML::Key << other.substr(section.size() + 1) << YAML::Value << nested;
    }
    out << YAML::EndMap;
  }
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

std::string flow(const YAML::Node& value) {
  YAML::Emitter out;
  out.SetSeqFormat(YAML::Flow);
  out.SetMapFormat(YAML::Flow);
  out << value;
  return out.c_str();
}

void move_paths(Writer& keys, const std::vector<fs::path>& from, const std::optional<fs::path>& to, Imported& result) {
  PathMover mover(from, to, result);
  for (const char* key : {"base_model", "lora_model_dir", "kd_teacher"}) {
    if (keys.has(key) && keys.get(key).IsScalar()) {
      keys.replace(key, YAML::Node(mover.path(key, keys.get(key).Scalar())));
    }
  }
  if (keys.has("chat_template") && keys.get("chat_template").IsScalar()) {
    keys.replace("chat_template", YAML::Node(mover.chat_template("chat_template", keys.get("chat_template").Scalar())));
  }
  for (const char* key : {"datasets", "test_datasets"}) {
    if (!keys.has(key) || !keys.get(key).IsSequence()) continue;
    YAML::Node list(YAML::NodeType::Sequence);
    for (const auto& entry : keys.get(key)) list.push_back(mover.dataset(key, entry));
    keys.replace(key, list);
  }
  mover.say_what_is_open();
}

void finish(const Writer& keys, Imported& result) {
  result.yaml = keys.text();
  for (std::string& problem : problems_of(result.yaml)) result.open.push_back(std::move(problem));
}

}  // namespace inlay::options::importing
