#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// CUDA programs that are compiled while we run, by NVRTC. What was compiled is kept in the cache folder, whole key
// beside it, so that a second run compiles nothing. Compiles without CUDA: no_cuda.cpp answers there that it cannot.
namespace inlay::backend::cuda {

// A file of ours that programs may include, as it was when we were built.
struct EmbeddedFile {
  const char* path;
  const char* text;
};

struct CompileRequest {
  std::string what;  // for people: "attention, forward"
  std::string text;
  std::span<const EmbeddedFile> files;
  std::string architecture;  // "sm_90a"
  std::vector<std::string> definitions;
};

struct CompiledCode {
  std::string code;   // for the device; empty where it failed
  std::string error;  // why, with the compiler's own words
  bool from_cache = false;
};

// Says what is compiled and since when, every few seconds.
using CompileProgress = std::function<void(std::string_view)>;
CompiledCode compile_at_run_time(const CompileRequest& request, const CompileProgress& say);

}  // namespace inlay::backend::cuda
