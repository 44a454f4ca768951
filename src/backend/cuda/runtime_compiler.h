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

// Says what it does while it compiles, every few seconds, through the progress function.
CompiledCode compile_at_run_time(const CompileRequest& request);

// Takes the lines that say what is compiled and since when; by default they go to stderr. Returns who took them before.
using CompileProgress = std::function<void(std::string_view)>;
CompileProgress set_compile_progress(CompileProgress progress);

}  // namespace inlay::backend::cuda
