#include "report/follow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "core/error.h"
#include "io/http.h"
#include "support/files.h"

namespace inlay::report {
namespace {

using inlay::testing::user_error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const auto page = [] { return std::string("<p>page</p>"); };

std::string answer(const std::string& line, const std::string& headers) {
  return answer_to(line + "\r\n" + headers, 4000, page);
}

TEST(ReportFollow, AnswersOnePageAndNothingElse) {
  const std::string host = "Host: 127.0.0.1:4000";
  EXPECT_THAT(answer("GET / HTTP/1.1", host), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("\r\n\r\n<p>page</p>"),
                                                    HasSubstr("Content-Security-Policy: default-src 'none'")));
  EXPECT_THAT(answer("GET /?a=b HTTP/1.0", "Accept: */*\r\nhost:  LOCALHOST:4000 "), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer("HEAD / HTTP/1.1", host),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Content-Length: 11"), Not(HasSubstr("page</p>"))));
  for (const char* path : {"/metrics.jsonl", "/../etc/passwd", "//", "/x", "*"}) {
    EXPECT_THAT(answer(std::string("GET ") + path + " HTTP/1.1", host), StartsWith("HTTP/1.1 404")) << path;
  }
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "get"}) {
    EXPECT_THAT(answer(std::string(method) + " / HTTP/1.1", host), StartsWith("HTTP/1.1 405")) << method;
  }
  for (const char* line : {"", "GET", "GET /", "GET / HTTP/2", "\x16\x03\x01"}) {
    EXPECT_THAT(answer(line, host), StartsWith("HTTP/1.1 400")) << line;
  }
}

// A page from elsewhere may have had its name pointed at 127.0.0.1: its browser still says the name.
TEST(ReportFollow, WhoAsksByAnotherNameIsRefused) {
  for (const char* headers :
       {"", "Host: evil.example:4000", "Host: 127.0.0.1", "Host: 127.0.0.1:4001", "Host: localhost:4000.evil.example",
        "Host: 127.0.0.1:4000\r\nHost: evil.example", "X-Host: 127.0.0.1:4000"}) {
    EXPECT_THAT(answer("GET / HTTP/1.1", headers), AllOf(StartsWith("HTTP/1.1 403"), Not(HasSubstr("<p>page"))))
        << headers;
  }
}

TEST(ReportFollow, WhatIsWrongWithTheRunIsTold) {
  const auto broken = []() -> std::string { throw UserError("metrics.jsonl:3: expected a number"); };
  EXPECT_THAT(answer_to("GET / HTTP/1.1\r\nHost: localhost:1", 1, broken),
              AllOf(StartsWith("HTTP/1.1 500"), HasSubstr("metrics.jsonl:3")));
}

TEST(ReportFollow, ServesOnLoopbackUntilItIsStopped) {
  std::atomic<bool> stopped = false;
  PageServer server(0, page);
  std::thread serving([&] { server.serve([&] { return stopped.load(); }); });
  const io::Url url = io::parse_url(server.url());
  for (int i = 0; i < 3; ++i) {
    const io::HttpResponse response = io::ask(url, {.path = "/"}, 30);
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "<p>page</p>");
  }
  EXPECT_EQ(io::ask(io::parse_url("http://localhost:" + url.port), {.path = "/x"}, 30).status, 404);
  EXPECT_THAT(user_error_of([&] { PageServer(std::stoi(url.port), page); }),
              HasSubstr("port " + url.port + " of 127.0.0.1 cannot be used: Address already in use"));
  stopped = true;
  serving.join();
}

}  // namespace
}  // namespace inlay::report
