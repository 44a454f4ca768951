#include "report/follow.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "core/error.h"

namespace inlay::report {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds patience{2};  // with who asks; others wait as long
constexpr std::size_t longest_head = 16384;

bool same_word(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

bool wait_for(int descriptor, short events, Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd entry{.fd = descriptor, .events = events, .revents = 0};
  return left > 0 && ::poll(&entry, 1, static_cast<int>(left)) > 0;
}

std::string response(std::string_view status, std::string_view type, std::string_view body, bool with_body) {
  // No script runs, nothing is loaded, no other page may hold this one.
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n"
      "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
      "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'\r\n\r\n{}",
      status, type, body.size(), with_body ? body : "");
}

}  // namespace

std::string answer_to(std::string_view head, int port, const std::function<std::string()>& page) {
  const std::string_view line = head.substr(0, head.find("\r\n"));
  const std::string_view method = line.substr(0, line.find(' '));
  const bool with_body = method != "HEAD";
  const auto refuse = [&](std::string_view status, std::string_view why) {
    return response(status, "text/plain", fmt::format("{}\n", why), with_body);
  };
  const std::size_t first = line.find(' '), second = line.find(' ', first + 1);
  if (first == line.npos || second == line.npos || !line.substr(second + 1).starts_with("HTTP/1.")) {
    return refuse("400 Bad Request", "this is not an HTTP/1 request");
  }
  int hosts = 0;
  bool ours = false;
  for (std::string_view rest = head.substr(std::min(line.size() + 2, head.size())); !rest.empty();) {
    const std::size_t end = std::min(rest.find("\r\n"), rest.size());
    const std::string_view header = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 2, rest.size()));
    const std::size_t colon = header.find(':');
    if (colon == header.npos || !same_word(header.substr(0, colon), "host")) continue;
    std::string_view value = header.substr(colon + 1);
    while (value.starts_with(' ')) value.remove_prefix(1);
    while (value.ends_with(' ')) value.remove_suffix(1);
    ++hosts;
    ours = same_word(value, fmt::format("127.0.0.1:{}", port)) || same_word(value, fmt::format("localhost:{}", port));
  }
  if (hosts != 1 || !ours)
    return refuse("403 Forbidden", "this page is for this machine only: ask for it at 127.0.0.1");
  if (method != "GET" && method != "HEAD") return refuse("405 Method Not Allowed", "this page can only be read");
  const std::string_view path = line.substr(first + 1, second - first - 1);
  if (path.substr(0, path.find('?')) != "/") return refuse("404 Not Found", "there is one page here: /");
  try {
    return response("200 OK", "text/html", page(), with_body);
  } catch (const UserError& error) {
    return refuse("500 Internal Server Error", error.what());
  }
}

PageServer::PageServer(int port, std::function<std::string()> page) : page_(std::move(page)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  socklen_t size = sizeof address;
  if (listener_ < 0 || ::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener_, 16) != 0 || ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    const int error = errno;
    if (listener_ >= 0) ::close(listener_);
    user_error("port {} of 127.0.0.1 cannot be used: {}; choose another with --port", port,
               std::generic_category().message(error));
  }
  port_ = ntohs(address.sin_port);
}

PageServer::~PageServer() { ::close(listener_); }

std::string PageServer::url() const { return fmt::format("http://127.0.0.1:{}/", port_); }

void PageServer::serve(const std::function<bool()>& stop) {
  while (!stop()) {
    if (!wait_for(listener_, POLLIN, Clock::now() + std::chrono::milliseconds(200))) continue;
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection < 0) continue;
    answer(connection);
    ::close(connection);
  }
}

void PageServer::answer(int connection) const {
  const auto deadline = Clock::now() + patience;
  std::string head;
  while (head.find("\r\n\r\n") == head.npos) {
    char piece[2048];
    if (head.size() > longest_head || !wait_for(connection, POLLIN, deadline)) return;
    const ssize_t got = ::recv(connection, piece, sizeof piece, 0);
    if (got <= 0) return;
    head.append(piece, static_cast<std::size_t>(got));
  }
  const std::string whole = answer_to(std::string_view(head).substr(0, head.find("\r\n\r\n")), port_, page_);
  for (std::string_view rest = whole; !rest.empty();) {
    if (!wait_for(connection, POLLOUT, deadline)) return;
    const ssize_t done = ::send(connection, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (done <= 0) return;
    rest.remove_prefix(static_cast<std::size_t>(done));
  }
}

}  // namespace inlay::report
