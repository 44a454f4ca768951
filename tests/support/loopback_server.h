#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace inlay::testing {

// A web server for one test, on a port of this machine that it finds by itself.
class LoopbackServer {
 public:
  struct Request {
    std::string path;     // "/api/models/org/name"
    std::string headers;  // all of them, as they came
    std::string header(const std::string& name) const;
  };
  struct Response {
    int status = 200;
    std::string body = {}, location = {};
  };
  using Answer = std::function<Response(const Request&)>;

  explicit LoopbackServer(Answer answer);
  ~LoopbackServer();
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<Request> requests() const;

 private:
  void serve();
  void answer_one(int connection);

  Answer answer_;
  int socket_ = -1, port_ = 0;
  mutable std::mutex mutex_;
  std::vector<Request> requests_;
  std::thread thread_;
};

}  // namespace inlay::testing
