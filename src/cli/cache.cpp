#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>

#include <fmt/chrono.h>
#include <nlohmann/json.hpp>

#include "cli/checks.h"
#include "cli/commands.h"
#include "core/arena.h"
#include "core/cache.h"
#include "core/error.h"
#include "core/terminal.h"
#include "io/paths.h"

namespace inlay::cli {

namespace fs = std::filesystem;

namespace {

// What lies in the cache, by how its names begin. Everything in it can be made again.
struct Kind {
  std::string_view name, begins, meaning;
};
constexpr std::array kinds = {Kind{"data", "data", "prepared datasets"},
                              Kind{"directions", "osft-", "directions that OSFT found"},
                              Kind{"kernels", "kernels", "attention kernels that were compiled at run time"},
                              Kind{"models", "models", "models with added tokens or changed special ones"},
                              Kind{"products", "matmul-", "which matrix products are fastest"},
                              Kind{"rates", "rates-", "measured rates of this machine"},
                              Kind{"other", "", "files that Inlay does not know"}};

const Kind& kind_of(const std::string& name) {
  return *std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) { return name.starts_with(kind.begins); });
}

struct Share {
  std::vector<fs::path> paths;
  std::uint64_t bytes = 0;
  std::int64_t files = 0;
  std::time_t used = 0;
};

void add_files(Share& share, const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return;
  if (S_ISDIR(status.st_mode)) {
    for (const fs::path& inner : io::entries_of(path)) add_files(share, inner);
    return;
  }
  share.bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
  ++share.files;
  share.used = std::max({share.used, status.st_atime, status.st_mtime});
}

std::array<Share, kinds.size()> shares_of(const fs::path& folder) {
  std::array<Share, kinds.size()> shares;
  if (!io::exists(folder)) return shares;
  for (const fs::path& path : io::entries_of(folder)) {
    Share& share = shares[static_cast<std::size_t>(&kind_of(path.filename().string()) - kinds.data())];
    share.paths.push_back(path);
    add_files(share, path);
  }
  return shares;
}

fs::path known_folder() {
  fs::path folder = cache_folder();
  if (folder.empty()) user_error("there is no cache: neither XDG_CACHE_HOME nor HOME is set");
  return folder;
}

int list(bool json) {
  const fs::path folder = known_folder();
  const auto shares = shares_of(folder);
  std::uint64_t total = 0;
  nlohmann::ordered_json object = {{"folder", folder.string()}, {"kinds", nlohmann::ordered_json::array()}};
  if (!json) fmt::print("{}\n", folder.string());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const Share& share = shares[i];
    total += share.bytes;
    if (json) {
      object["kinds"].push_back({{"what", kinds[i].name}, {"bytes", share.bytes}, {"files", share.files}});
      object["kinds"].back()["last_used"] =
          share.files > 0 ? nlohmann::ordered_json(fmt::format("{:%FT%TZ}", fmt::gmtime(share.used))) : nullptr;
    } else if (share.files > 0) {
      fmt::print("  {:<11} {:>10}  {:>6} {}  last used {:%F %H:%M}  {}\n", kinds[i].name, format_bytes(share.bytes),
                 share.files, share.files == 1 ? "file " : "files", fmt::localtime(share.used), kinds[i].meaning);
    }
  }
  if (json) {
    object["bytes"] = total;
    fmt::print("{}\n", object.dump());
  } else {
    fmt::print("  {:<11} {:>10}\n", "in all", format_bytes(total));
  }
  return 0;
}

bool agreed(std::uint64_t bytes, const fs::path& folder) {
  if (!is_terminal(STDIN_FILENO)) user_error("cache clear: give --yes, or answer at a terminal");
  fmt::print(stderr, "remove {} from {}? [y/N] ", format_bytes(bytes), folder.string());
  char answer[16] = {};
  return std::fgets(answer, sizeof answer, stdin) != nullptr && (answer[0] == 'y' || answer[0] == 'Y');
}

int clear(const std::vector<std::string>& wanted, bool yes) {
  const fs::path folder = known_folder();
  const auto shares = shares_of(folder);
  std::vector<fs::path> paths;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), kinds[i].name) == wanted.end()) continue;
    paths.insert(paths.end(), shares[i].paths.begin(), shares[i].paths.end());
    bytes += shares[i].bytes;
  }
  if (paths.empty()) {
    fmt::print("nothing to remove in {}\n", folder.string());
    return 0;
  }
  if (!yes && !agreed(bytes, folder)) {
    fmt::print("nothing was removed\n");
    return 0;
  }
  for (const fs::path& path : paths) io::remove_all(path);
  fmt::print("removed {} from {}\n", format_bytes(bytes), folder.string());
  return 0;
}

}  // namespace

void add_cache(Program& program) {
  struct Arguments {
    std::vector<std::string> what;
    bool yes = false, json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      program.app.add_subcommand("cache", "What is kept between runs: how large it is, and clearing it");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->callback([&program, arguments, command] {
    if (command->get_subcommands().empty()) program.action = [arguments] { return list(arguments->json); };
  });
  CLI::App* listing = command->add_subcommand("list", "The same as inlay cache alone");
  listing->add_flag("--json", arguments->json, "Print one JSON object");
  listing->callback([&program, arguments] { program.action = [arguments] { return list(arguments->json); }; });
  CLI::App* one = command->add_subcommand("clear", "Remove cached files; all of them can be made again");
  std::vector<std::string> names;
  for (const Kind& kind : kinds) names.emplace_back(kind.name);
  one->add_option("what", arguments->what, any_of(names) + "; by default everything")->check(one_of(names));
  one->add_flag("--yes", arguments->yes, "Do not ask first");
  one->callback(
      [&program, arguments] { program.action = [arguments] { return clear(arguments->what, arguments->yes); }; });
}

}  // namespace inlay::cli
