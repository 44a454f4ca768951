#include "io/hub.h"

#include <algorithm>

#include "core/environment.h"
#include "core/error.h"
#include "io/file.h"
#include "io/hub_download.h"
#include "io/json.h"
#include "io/lock.h"
#include "io/paths.h"

namespace inlay::io {

namespace fs = std::filesystem;

namespace {

// models--org--name, as hf names it.
fs::path folder_of(const HubName& name) {
  std::string folder = name.kind == HubKind::model ? "models" : "datasets";
  folder += "--";
  for (const char c : name.name) folder += c == '/' ? std::string("--") : std::string(1, c);
  return hub_cache() / folder;
}

std::string hf_command(const HubName& name) {
  return fmt::format("hf download {}{}{}", name.kind == HubKind::dataset ? "--repo-type dataset " : "", name.name,
                     name.revision.empty() ? "" : " --revision " + name.revision);
}

// Of a model: what it is, its weights, its tokenizer, and its card, which has the licence. Other formats of the same
// weights stay where they are.
bool is_of_model(const std::string& file) {
  if (file == "README.md") return true;
  const fs::path path(file);
  const std::string extension = path.extension();
  return path.parent_path().empty() && (extension == ".json" || extension == ".safetensors" || extension == ".jinja" ||
                                        extension == ".model" || extension == ".tiktoken" || extension == ".txt");
}

// Programs that only want a tokenizer or a configuration leave no more of a model in the cache.
bool is_whole(const HubName& name, const fs::path& folder) {
  if (name.kind == HubKind::dataset) return true;
  if (!io::exists(folder / "config.json")) return false;
  if (io::exists(folder / "model.safetensors")) return true;
  if (!io::exists(folder / "model.safetensors.index.json")) return false;
  const Json map = Json::read(folder / "model.safetensors.index.json").object("weight_map");
  return std::ranges::all_of(map.keys(), [&](const std::string& key) { return io::exists(folder / map.string(key)); });
}

}  // namespace

bool is_hub_name(std::string_view text) {
  const std::size_t slash = text.find('/');
  const auto plain = [](std::string_view part) {
    return !part.empty() && part.front() != '.' && part.front() != '-' && part.find("..") == part.npos &&
           part.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == part.npos;
  };
  return slash != text.npos && plain(text.substr(0, slash)) && plain(text.substr(slash + 1));
}

fs::path hub_cache() {
  if (const auto cache = environment("HF_HUB_CACHE")) return *cache;
  if (const auto home = environment("HF_HOME")) return fs::path(*home) / "hub";
  if (const auto cache = environment("XDG_CACHE_HOME")) return fs::path(*cache) / "huggingface/hub";
  if (const auto home = environment("HOME")) return fs::path(*home) / ".cache/huggingface/hub";
  return {};
}

std::optional<fs::path> find_in_cache(const HubName& name) {
  if (hub_cache().empty()) return std::nullopt;
  const fs::path folder = folder_of(name), snapshots = folder / "snapshots";
  if (!is_folder(snapshots)) return std::nullopt;
  const std::string revision = name.revision.empty() ? "main" : name.revision;
  if (is_file(folder / "refs" / revision)) {
    std::string commit = read_file(folder / "refs" / revision, 4096);
    commit.erase(commit.find_last_not_of(" \r\n") + 1);
    if (is_hub_name("x/" + commit) && is_folder(snapshots / commit)) return snapshots / commit;
  }
  // A commit, in full or by its beginning; or, where a copy has no refs, the only one that is there.
  std::vector<fs::path> found;
  for (const fs::path& snapshot : entries_of(snapshots)) {
    if (name.revision.empty() || snapshot.filename().string().starts_with(revision)) found.push_back(snapshot);
  }
  const bool refs = name.revision.empty() && is_file(folder / "refs/main");
  return found.size() == 1 && !refs ? std::optional(found.front()) : std::nullopt;
}

fs::path fetch(const HubName& name, const HubAccess& access,
               const std::function<bool(const std::string& file)>& wanted) {
  const auto there = find_in_cache(name);
  if (there && (!access.download || is_whole(name, *there))) return *there;
  const char* kind = name.kind == HubKind::model ? "model" : "dataset";
  if (hub_cache().empty()) user_error("{}: no such {} folder, and without HOME there is no cache", name.name, kind);
  if (!access.download) {
    user_error(
        "{}: no such {}, neither as a path nor in the Hugging Face cache ({}); to download it, add --download, or "
        "run: {}",
        name.name, kind, hub_cache().string(), hf_command(name));
  }
  create_folders(folder_of(name));
  const TurnLock turn(folder_of(name) / ".inlay.lock", [] {});
  const auto found = find_in_cache(name);
  if (found && is_whole(name, *found)) return *found;  // another process has done it meanwhile
  return download(name, folder_of(name), access, wanted);
}

std::string model_folder(const std::string& given, const std::string& revision, const HubAccess& access) {
  if (exists(given) || !is_hub_name(given)) return given;
  return fetch({HubKind::model, given, revision}, access, is_of_model).string();
}

}  // namespace inlay::io
