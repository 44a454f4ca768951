#include "backend/cuda/runtime_compiler.h"

#include <nvrtc.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <sstream>
#include <utility>

#include "core/cache.h"
#include "core/error.h"

namespace inlay::backend::cuda {

namespace {

constexpr std::string_view header = "inlay device code 1";

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// Everything the code depends on.
std::string key_of(const CompileRequest& request) {
  int major = 0, minor = 0;
  nvrtcVersion(&major, &minor);
  std::string key = fmt::format("nvrtc {}.{}, {}\n", major, minor, request.architecture);
  for (const std::string& definition : request.definitions) key += definition + "\n";
  for (const EmbeddedFile& file : request.files) key += fmt::format("---- {}\n{}\n", file.path, file.text);
  return key + "---- program\n" + request.text;
}

std::filesystem::path file_of(std::string_view key) {
  const std::filesystem::path folder = cache_folder();
  return folder.empty() ? folder : folder / "kernels" / fmt::format("{:016x}.cubin", hash_of(key));
}

// header, sizes, hash of the code, key, code. Anything that is not just so is as good as absent.
std::string first_line(std::string_view key, std::string_view code) {
  return fmt::format("{} {} {} {:016x}\n", header, key.size(), code.size(), hash_of(code));
}

std::string load(const std::filesystem::path& path, std::string_view key) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  std::ostringstream buffer;
  buffer << file.rdbuf();
  const std::string content = buffer.str();
  const std::size_t line = content.find('\n') + 1;
  if (line == 0 || content.compare(line, key.size(), key) != 0 || content.size() < line + key.size()) return {};
  std::string code = content.substr(line + key.size());
  return first_line(key, code) == content.substr(0, line) ? code : std::string();
}

// Written beside and renamed, so that nobody reads half of it. A cache that cannot be written is no error.
void save(const std::filesystem::path& path, std::string_view key, std::string_view code) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  const std::filesystem::path beside = path.string() + fmt::format(".{}", ::getpid());
  std::ofstream file(beside, std::ios::binary);
  file << first_line(key, code) << key << code;
  file.close();
  if (file) std::filesystem::rename(beside, path, error);
  if (!file || error) std::filesystem::remove(beside, error);
}

CompiledCode compile(const CompileRequest& request) {
  std::vector<const char*> texts, paths;
  for (const EmbeddedFile& file : request.files) {
    texts.push_back(file.text);
    paths.push_back(file.path);
  }
  std::vector<std::string> options = {"--gpu-architecture=" + request.architecture, "--std=c++20"};
  for (const std::string& definition : request.definitions) options.push_back("--define-macro=" + definition);
  std::vector<const char*> option_pointers;
  for (const std::string& option : options) option_pointers.push_back(option.c_str());

  nvrtcProgram program = nullptr;
  CompiledCode result;
  nvrtcResult status = nvrtcCreateProgram(&program, request.text.c_str(), "program.cu", static_cast<int>(texts.size()),
                                          texts.data(), paths.data());
  if (status == NVRTC_SUCCESS) {
    status = nvrtcCompileProgram(program, static_cast<int>(option_pointers.size()), option_pointers.data());
  }
  std::size_t size = 0;
  if (status == NVRTC_SUCCESS) status = nvrtcGetCUBINSize(program, &size);
  if (status == NVRTC_SUCCESS) {
    result.code.resize(size);
    status = nvrtcGetCUBIN(program, result.code.data());
  }
  if (status != NVRTC_SUCCESS) {
    result.code.clear();
    result.error = nvrtcGetErrorString(status);
    if (program != nullptr && nvrtcGetProgramLogSize(program, &size) == NVRTC_SUCCESS && size > 1) {
      std::string log(size, '\0');
      if (nvrtcGetProgramLog(program, log.data()) == NVRTC_SUCCESS) result.error += ":\n" + log;
    }
  }
  if (program != nullptr) nvrtcDestroyProgram(&program);
  return result;
}

}  // namespace

CompiledCode compile_at_run_time(const CompileRequest& request, const CompileProgress& say) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const std::string key = key_of(request);
  const std::filesystem::path path = file_of(key);
  if (!path.empty()) {
    if (std::string code = load(path, key); !code.empty()) return {std::move(code), {}, true};
  }
  const auto began = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  say(fmt::format("compiling {} for {}, once", request.what, request.architecture));
  std::future<CompiledCode> work = std::async(std::launch::async, [&] { return compile(request); });
  while (work.wait_for(std::chrono::seconds(5)) != std::future_status::ready) {
    say(fmt::format("still compiling {}, {:.0f} s", request.what, seconds()));
  }
  CompiledCode result = work.get();
  say(fmt::format("{} {} after {:.1f} s", result.code.empty() ? "could not compile" : "compiled", request.what,
                  seconds()));
  if (!result.code.empty() && !path.empty()) save(path, key, result.code);
  return result;
}

}  // namespace inlay::backend::cuda
