#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Asking a server over HTTP, as far as a board's interface needs it. https goes through libcurl, loaded where it is
// asked for, so that nobody else must have it.
namespace inlay::io {

// The server could not be reached, or did not speak HTTP. What it answered is an answer, whatever its status.
class HttpError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Url {
  bool secure = false;
  std::string host, port, path;  // path begins with / and has no / at its end, or is empty

  std::string text() const;
};
// UserError where it is not http://HOST[:PORT][/PATH] or the same with https.
Url parse_url(std::string_view text);

struct HttpRequest {
  std::string method = "GET";
  std::string path;  // behind the URL's, with its query
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
};
struct HttpResponse {
  int status = 0;
  std::string body;
};
// Gives up after so many seconds.
HttpResponse ask(const Url& server, const HttpRequest& request, double seconds);

// As it may stand in a query.
std::string percent_encoded(std::string_view text);
std::string base64(std::string_view bytes);

// ask() for https.
HttpResponse ask_by_curl(const Url& server, const HttpRequest& request, double seconds);

}  // namespace inlay::io
