#pragma once

#include <cstdio>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "io/hub.h"

namespace inlay::cli {

inline constexpr const char* model_meaning = "Hugging Face model folder, or a name on the hub (org/name)";

// What commands that take the name of a model have in common: where it is found, and whether it may be downloaded.
struct HubArguments {
  bool download = false;

  void add_to(CLI::App& command) {
    command.add_flag("--download", download,
                     "Download models and datasets of the Hugging Face hub that are not in its cache");
  }
  io::HubAccess access(bool quiet = false) const {
    io::HubAccess access{.download = download};
    if (!quiet) access.say = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
    return access;
  }
  std::string model_folder(const std::string& given, bool quiet = false) const {
    return io::model_folder(given, "", access(quiet));
  }
};

}  // namespace inlay::cli
