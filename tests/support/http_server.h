#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace inlay::testing {

// A server on loopback that answers one request per connection, as a test says, on a thread of its own.
class HttpServer {
 public:
  struct Request {
    std::string method, path, head, body;
  };
  // The whole answer, status line and all; empty: hangs up.
  using Answer = std::function<std::string(const Request&)>;

  explicit HttpServer(Answer answer) : answer_(std::move(answer)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(listener_, 16);
    socklen_t size = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~HttpServer() {
    stopping_ = true;
    thread_.join();
    ::close(listener_);
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<Request> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  static std::string json(int status, const std::string& body) {
    return "HTTP/1.1 " + std::to_string(status) +
           " X\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }

 private:
  void serve() {
    while (!stopping_) {
      pollfd entry{.fd = listener_, .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, 20) <= 0) continue;
      const int connection = ::accept(listener_, nullptr, nullptr);
      if (connection < 0) continue;
      answer_one(connection);
      ::close(connection);
    }
  }
  void answer_one(int connection) {
    std::string text;
    std::size_t end, length = 0;
    while ((end = text.find("\r\n\r\n")) == text.npos || text.size() < end + 4 + length) {
      char piece[4096];
      const ssize_t got = ::recv(connection, piece, sizeof piece, 0);
      if (got <= 0) return;
      text.append(piece, static_cast<std::size_t>(got));
      const std::size_t at = text.find("Content-Length: ");
      if (at != text.npos) length = std::stoul(text.substr(at + 16));
    }
    Request request{.method = text.substr(0, text.find(' ')),
                    .path = "",
                    .head = text.substr(0, end),
                    .body = text.substr(end + 4)};
    const std::size_t path = request.method.size() + 1;
    request.path = text.substr(path, text.find(' ', path) - path);
    const std::string answer = answer_(request);
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    ::send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
  }

  Answer answer_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  std::vector<Request> requests_;
  std::thread thread_;
};

}  // namespace inlay::testing
