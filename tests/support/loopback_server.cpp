#include "support/loopback_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>

#include <fmt/format.h>

namespace inlay::testing {

std::string LoopbackServer::Request::header(const std::string& name) const {
  const std::size_t at = headers.find("\r\n" + name + ": ");
  if (at == headers.npos) return "";
  const std::size_t begin = at + name.size() + 4;
  return headers.substr(begin, headers.find("\r\n", begin) - begin);
}

LoopbackServer::LoopbackServer(Answer answer) : answer_(std::move(answer)) {
  socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (socket_ < 0 || ::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(socket_, 16) != 0 ||
      ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("no port to listen at");
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { serve(); });
}

LoopbackServer::~LoopbackServer() {
  ::shutdown(socket_, SHUT_RDWR);  // ends accept()
  thread_.join();
  ::close(socket_);
}

std::vector<LoopbackServer::Request> LoopbackServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void LoopbackServer::serve() {
  for (;;) {
    const int connection = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return;
    answer_one(connection);
    ::close(connection);
  }
}

void LoopbackServer::answer_one(int connection) {
  std::string text;
  char piece[4096];
  while (text.find("\r\n\r\n") == text.npos) {
    const ssize_t got = ::read(connection, piece, sizeof(piece));
    if (got <= 0) return;
    text.append(piece, static_cast<std::size_t>(got));
  }
  const std::size_t begin = text.find(' ') + 1;
  const Request request{text.substr(begin, text.find(' ', begin) - begin), text.substr(text.find("\r\n"))};
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  Response response = answer_(request);
  std::string more;
  if (const std::string range = request.header("Range"); response.status == 200 && range.starts_with("bytes=")) {
    const std::size_t from = std::stoul(range.substr(6)), whole = response.body.size();
    response.status = from < whole ? 206 : 416;
    response.body.erase(0, from);
    if (from < whole) more = fmt::format("Content-Range: bytes {}-{}/{}\r\n", from, whole - 1, whole);
  }
  if (!response.location.empty()) more += "Location: " + response.location + "\r\n";
  const std::string answer = fmt::format("HTTP/1.1 {} x\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}",
                                         response.status, response.body.size(), more, response.body);
  for (std::size_t at = 0; at < answer.size();) {
    const ssize_t sent = ::send(connection, answer.data() + at, answer.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return;
    at += static_cast<std::size_t>(sent);
  }
}

}  // namespace inlay::testing
