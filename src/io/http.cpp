#include "io/http.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <memory>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "core/error.h"
#include "io/paths.h"

namespace inlay::io {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t most_bytes = std::size_t{16} << 20;  // of an answer

bool same_word(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return std::tolower(x) == std::tolower(y); });
}

// A connection that waits for nothing longer than until the deadline.
class Connection {
 public:
  Connection(const Url& server, Clock::time_point deadline) : server_(server), deadline_(deadline) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int error = ::getaddrinfo(server.host.c_str(), server.port.c_str(), &hints, &found); error != 0) {
      fail(::gai_strerror(error));
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
    int error = 0;
    for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
      descriptor_ = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
      if (descriptor_ < 0) continue;
      error = ::connect(descriptor_, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
      if (error == EINPROGRESS) error = connected();
      if (error == 0) return;
      ::close(std::exchange(descriptor_, -1));
    }
    fail(reason(error));
  }
  ~Connection() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      if (!wait(POLLOUT)) fail("no answer in time");
      const ssize_t done = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (done < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (done < 0) fail(reason(errno));
      bytes.remove_prefix(static_cast<std::size_t>(done));
    }
  }
  // Some more bytes; false at the end.
  bool receive(std::string& bytes) {
    for (;;) {
      if (!wait(POLLIN)) fail("no answer in time");
      char piece[8192];
      const ssize_t got = ::recv(descriptor_, piece, sizeof piece, 0);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got < 0) fail(reason(errno));
      bytes.append(piece, static_cast<std::size_t>(got));
      if (bytes.size() > most_bytes) fail("its answer is too long");
      return got > 0;
    }
  }

  [[noreturn]] void fail(const std::string& why) const { throw HttpError(fmt::format("{}: {}", server_.text(), why)); }

 private:
  bool wait(short events) const {
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
      if (left <= 0) return false;
      pollfd entry{.fd = descriptor_, .events = events, .revents = 0};
      const int ready = ::poll(&entry, 1, static_cast<int>(left));
      if (ready < 0 && errno == EINTR) continue;
      return ready > 0;
    }
  }
  int connected() const {
    if (!wait(POLLOUT)) return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &size);
    return error;
  }

  const Url& server_;
  Clock::time_point deadline_;
  int descriptor_ = -1;
};

struct Head {
  int status = 0;
  std::optional<std::size_t> length;
  bool chunked = false;
};

Head parse_head(std::string_view text, const Connection& connection) {
  Head head;
  // "HTTP/1.1 200 OK"
  const std::size_t space = text.find(' ');
  if (!text.starts_with("HTTP/1.") || space == text.npos ||
      std::from_chars(text.data() + space + 1, text.data() + text.size(), head.status).ec != std::errc()) {
    connection.fail("does not speak HTTP");
  }
  while (!text.empty()) {
    const std::size_t end = text.find("\r\n");
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 2);
    const std::size_t colon = line.find(':');
    if (colon == line.npos) continue;
    std::string_view value = line.substr(colon + 1);
    while (value.starts_with(' ')) value.remove_prefix(1);
    if (same_word(line.substr(0, colon), "content-length")) {
      std::size_t length = 0;
      if (std::from_chars(value.data(), value.data() + value.size(), length).ec == std::errc()) head.length = length;
    } else if (same_word(line.substr(0, colon), "transfer-encoding")) {
      head.chunked = same_word(value, "chunked");
    }
  }
  return head;
}

// The body without what chunks are told apart by; nothing where it is not complete.
std::optional<std::string> unchunked(std::string_view bytes) {
  std::string body;
  for (;;) {
    std::size_t size = 0;
    const std::size_t end = bytes.find("\r\n");
    if (end == bytes.npos) return std::nullopt;
    if (std::from_chars(bytes.data(), bytes.data() + end, size, 16).ec != std::errc()) return std::nullopt;
    bytes.remove_prefix(end + 2);
    if (size == 0) return body;
    if (bytes.size() < size + 2) return std::nullopt;
    body += bytes.substr(0, size);
    bytes.remove_prefix(size + 2);
  }
}

}  // namespace

std::string Url::text() const {
  return fmt::format("{}://{}:{}{}", secure ? "https" : "http", host.find(':') == host.npos ? host : "[" + host + "]",
                     port, path);
}

Url parse_url(std::string_view text) {
  const std::string_view whole = text;
  const auto refuse = [&] { user_error("{}: expected http://HOST[:PORT] or https://HOST[:PORT]", whole); };
  Url url;
  url.secure = text.starts_with("https://");
  if (!url.secure && !text.starts_with("http://")) refuse();
  text.remove_prefix(url.secure ? 8 : 7);
  const std::size_t slash = std::min(text.find('/'), text.size());
  std::string_view authority = text.substr(0, slash);
  url.path = text.substr(slash);
  while (url.path.ends_with('/')) url.path.pop_back();
  if (authority.find('@') != authority.npos) {
    user_error("an address must not hold a password: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD");
  }
  url.port = url.secure ? "443" : "80";
  const std::size_t bracket = authority.starts_with('[') ? authority.find(']') : 0;
  if (bracket == authority.npos) refuse();
  if (const std::size_t colon = authority.find(':', bracket); colon != authority.npos) {
    url.port = authority.substr(colon + 1);
    authority = authority.substr(0, colon);
  }
  url.host = bracket > 0 ? authority.substr(1, bracket - 1) : authority;
  const bool is_number = !url.port.empty() && url.port.find_first_not_of("0123456789") == url.port.npos;
  const auto odd = [](char c) { return static_cast<unsigned char>(c) <= ' '; };
  if (url.host.empty() || !is_number || std::ranges::any_of(whole, odd)) refuse();
  return url;
}

HttpResponse ask(const Url& server, const HttpRequest& request, double seconds) {
  if (server.secure) return ask_by_curl(server, request, seconds);
  Connection connection(server, Clock::now() + std::chrono::milliseconds(static_cast<long long>(1000 * seconds)));
  std::string message =
      fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\nContent-Length: {}\r\n", request.method,
                  server.path, request.path, server.host, server.port, request.body.size());
  for (const auto& [name, value] : request.headers) message += fmt::format("{}: {}\r\n", name, value);
  connection.send(message + "\r\n" + request.body);
  std::string answer;
  std::size_t end;
  while ((end = answer.find("\r\n\r\n")) == answer.npos) {
    if (!connection.receive(answer)) connection.fail("closed the connection without an answer");
  }
  const Head head = parse_head(std::string_view(answer).substr(0, end), connection);
  std::string body = answer.substr(end + 4);
  if (head.chunked) {
    for (;;) {
      if (auto whole = unchunked(body)) return {head.status, std::move(*whole)};
      if (!connection.receive(body)) connection.fail("closed the connection in the middle of its answer");
    }
  }
  while (!head.length || body.size() < *head.length) {
    if (connection.receive(body)) continue;
    if (head.length) connection.fail("closed the connection in the middle of its answer");
    break;
  }
  if (head.length) body.resize(*head.length);
  return {head.status, std::move(body)};
}

std::string percent_encoded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                       c == '-' || c == '_' || c == '.' || c == '~';
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return out;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::string_view three = bytes.substr(at, 3);
    unsigned bits = 0;
    for (std::size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (i < three.size() ? static_cast<unsigned char>(three[i]) : 0);
    for (std::size_t i = 0; i < 4; ++i) out += i <= three.size() ? digits[bits >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

}  // namespace inlay::io
