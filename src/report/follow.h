#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace inlay::report {

// Shows a page to browsers on this machine, made anew for every request: a server on loopback that reads requests for
// that page alone and changes nothing.
class PageServer {
 public:
  // port 0: any that is free. UserError where it cannot be had.
  PageServer(int port, std::function<std::string()> page);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  std::string url() const;
  // Answers until stop() holds, which is asked several times per second.
  void serve(const std::function<bool()>& stop);

 private:
  void answer(int connection) const;

  std::function<std::string()> page_;
  int listener_ = -1;
  int port_ = 0;
};

// What such a server answers to the head of a request. Only who asks for this machine by its own name is answered: a
// page from elsewhere, whose name was made to point here, is not.
std::string answer_to(std::string_view head, int port, const std::function<std::string()>& page);

}  // namespace inlay::report
