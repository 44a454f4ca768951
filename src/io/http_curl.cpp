#include <dlfcn.h>

#include <memory>

#include <fmt/format.h>

#include "core/environment.h"
#include "io/http.h"

// libcurl by its binary interface, which has not changed since version 7 (the library's name says 4): numbers as in
// curl.h.
namespace inlay::io {

namespace {

constexpr int opt_write_data = 10001, opt_url = 10002, opt_post_fields = 10015, opt_headers = 10023, opt_method = 10036,
              opt_authorities = 10065, opt_write_function = 20011, opt_post_size = 60, opt_no_signal = 99,
              opt_timeout_ms = 155;
constexpr int untrusted_server = 60, bad_authorities = 77;  // of its errors
constexpr int info_status = 0x200002;

struct Curl {
  Curl() {
    void* library = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) library = ::dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, name));
      complete = complete && function != nullptr;
    };
    complete = true;
    load(global_init, "curl_global_init");
    load(init, "curl_easy_init");
    load(set, "curl_easy_setopt");
    load(perform, "curl_easy_perform");
    load(info, "curl_easy_getinfo");
    load(error, "curl_easy_strerror");
    load(cleanup, "curl_easy_cleanup");
    load(append, "curl_slist_append");
    load(free_list, "curl_slist_free_all");
    constexpr long everything = 3;
    if (complete) complete = global_init(everything) == 0;
  }

  bool complete = false;
  int (*global_init)(long) = nullptr;
  void* (*init)() = nullptr;
  int (*set)(void*, int, ...) = nullptr;
  int (*perform)(void*) = nullptr;
  int (*info)(void*, int, ...) = nullptr;
  const char* (*error)(int) = nullptr;
  void (*cleanup)(void*) = nullptr;
  void* (*append)(void*, const char*) = nullptr;
  void (*free_list)(void*) = nullptr;
};

std::size_t keep(const char* bytes, std::size_t size, std::size_t count, void* into) {
  static_cast<std::string*>(into)->append(bytes, size * count);
  return size * count;
}

// The certificates that are trusted instead of the system's: libcurl itself does not look where its program does.
std::string authorities() {
  return environment("MLFLOW_TRACKING_SERVER_CERT_PATH").value_or(environment("SSL_CERT_FILE").value_or(""));
}

}  // namespace

HttpResponse ask_by_curl(const Url& server, const HttpRequest& request, double seconds) {
  static const Curl curl;
  if (!curl.complete) {
    throw HttpError(fmt::format("{}: https needs libcurl, which is not installed (Debian: libcurl4)", server.text()));
  }
  const std::unique_ptr<void, void (*)(void*)> handle(curl.init(), curl.cleanup);
  if (handle == nullptr) throw HttpError(fmt::format("{}: libcurl cannot be used", server.text()));
  std::unique_ptr<void, void (*)(void*)> headers(nullptr, curl.free_list);
  for (const auto& [name, value] : request.headers) {
    void* longer = curl.append(headers.get(), fmt::format("{}: {}", name, value).c_str());
    if (longer == nullptr) continue;
    static_cast<void>(headers.release());
    headers.reset(longer);
  }
  HttpResponse response;
  const std::string url = server.text() + request.path;
  curl.set(handle.get(), opt_url, url.c_str());
  curl.set(handle.get(), opt_method, request.method.c_str());
  curl.set(handle.get(), opt_headers, headers.get());
  curl.set(handle.get(), opt_no_signal, 1L);
  const std::string trusted = authorities();
  if (!trusted.empty()) curl.set(handle.get(), opt_authorities, trusted.c_str());
  curl.set(handle.get(), opt_timeout_ms, static_cast<long>(1000 * seconds));
  curl.set(handle.get(), opt_write_function, &keep);
  curl.set(handle.get(), opt_write_data, &response.body);
  if (!request.body.empty()) {
    curl.set(handle.get(), opt_post_size, static_cast<long>(request.body.size()));
    curl.set(handle.get(), opt_post_fields, request.body.c_str());
  }
  if (const int code = curl.perform(handle.get()); code != 0) {
    const bool untrusted = code == untrusted_server || code == bad_authorities;
    throw HttpError(fmt::format("{}: {}{}", server.text(), curl.error(code),
                                !untrusted        ? ""
                                : trusted.empty() ? "; MLFLOW_TRACKING_SERVER_CERT_PATH or SSL_CERT_FILE names the "
                                                    "certificate to trust"
                                                  : fmt::format(" (certificates of {})", trusted)));
  }
  long status = 0;
  curl.info(handle.get(), info_status, &status);
  response.status = static_cast<int>(status);
  return response;
}

}  // namespace inlay::io
