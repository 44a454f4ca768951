#pragma once

#include "io/hub.h"

namespace inlay::io {

// Downloads what is wanted of a repository into its folder of the cache, by curl, or by hf where there is no curl. A
// file that was begun goes on where it stopped. $HF_ENDPOINT names another server than huggingface.co; a token
// ($HF_TOKEN, or what hf auth login has kept) goes to curl by a pipe: nobody sees it among the arguments of a process.
std::filesystem::path download(const HubName& name, const std::filesystem::path& folder, const HubAccess& access,
                               const std::function<bool(const std::string& file)>& wanted);

}  // namespace inlay::io
