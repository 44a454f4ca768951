#include "io/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/command.h"
#include "support/files.h"
#include "support/http_server.h"

namespace inlay::io {
namespace {

using inlay::testing::HttpServer;
using inlay::testing::user_error_of;
using ::testing::HasSubstr;

std::string http_error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const HttpError& error) {
    return error.what();
  }
  return "";
}

TEST(IoHttp, UrlsAreTakenApart) {
  Url url = parse_url("http://board.example:5000/mlflow/");
  EXPECT_EQ(url.host, "board.example");
  EXPECT_EQ(url.port, "5000");
  EXPECT_EQ(url.path, "/mlflow");
  EXPECT_FALSE(url.secure);
  url = parse_url("https://[::1]");
  EXPECT_EQ(url.host, "::1");
  EXPECT_EQ(url.port, "443");
  EXPECT_TRUE(url.secure);
  EXPECT_EQ(url.text(), "https://[::1]:443");
  for (const char* wrong : {"", "board", "ftp://a", "http://", "http://a:b", "http://a:", "http://[::1", "http://a b",
                            "http://a\r\nX: y"}) {
    EXPECT_THAT(user_error_of([&] { parse_url(wrong); }), HasSubstr("expected http://HOST[:PORT]")) << wrong;
  }
  EXPECT_THAT(user_error_of([&] { parse_url("http://me:secret@a"); }),
              ::testing::AllOf(HasSubstr("must not hold a password"), ::testing::Not(HasSubstr("secret"))));
}

TEST(IoHttp, SendsARequestAndReadsEveryKindOfAnswer) {
  std::string answer;
  HttpServer server([&](const HttpServer::Request&) { return answer; });
  const Url url = parse_url(server.url() + "/base");
  answer = HttpServer::json(200, "{\"a\":1}");
  HttpResponse response =
      ask(url, {.method = "POST", .path = "/x?y=1", .headers = {{"Authorization", "Bearer t"}}, .body = "hello"}, 10);
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, "{\"a\":1}");
  const auto request = server.requests().back();
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path, "/base/x?y=1");
  EXPECT_EQ(request.body, "hello");
  EXPECT_THAT(request.head, HasSubstr("\r\nAuthorization: Bearer t"));
  EXPECT_THAT(request.head, HasSubstr("\r\nHost: 127.0.0.1:"));

  answer = "HTTP/1.0 404 Not Found\r\n\r\nno length";
  response = ask(url, {}, 10);
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(response.body, "no length");
  answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n5\r\nhello\r\n1;x\r\n!\r\n0\r\n\r\n";
  EXPECT_EQ(ask(url, {}, 10).body, "hello!");
}

TEST(IoHttp, WhatIsNoAnswerIsAnErrorThatNamesTheServer) {
  std::string answer;
  HttpServer server([&](const HttpServer::Request&) { return answer; });
  const Url url = parse_url(server.url());
  EXPECT_THAT(http_error_of([&] { ask(url, {}, 10); }), HasSubstr(server.url() + ": closed the connection without"));
  answer = "SSH-2.0\r\n\r\n";
  EXPECT_THAT(http_error_of([&] { ask(url, {}, 10); }), HasSubstr("does not speak HTTP"));
  answer = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort";
  EXPECT_THAT(http_error_of([&] { ask(url, {}, 10); }), HasSubstr("in the middle of its answer"));
  answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe";
  EXPECT_THAT(http_error_of([&] { ask(url, {}, 10); }), HasSubstr("in the middle of its answer"));
  EXPECT_THAT(http_error_of([&] { ask(parse_url("http://127.0.0.1:1"), {}, 10); }), HasSubstr("Connection refused"));
  EXPECT_THAT(http_error_of([&] { ask(parse_url("http://no.such.host.invalid"), {}, 10); }),
              HasSubstr("http://no.such.host.invalid:80: "));
}

// A server of OpenSSL's with a certificate that nobody knows, for so many connections.
std::string start_https(const inlay::testing::TempFolder& folder, int connections) {
  const auto made = inlay::testing::run(
      "bash",
      {"-c",
       "cd \"$0\" && openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj "
       "/CN=localhost -addext subjectAltName=IP:127.0.0.1 && { timeout 60 openssl s_server -accept 127.0.0.1:0 "
       "-cert cert.pem -key key.pem -www -naccept $1 > server.txt 2>&1 < /dev/null & } && for i in $(seq 100); "
       "do grep -q ACCEPT server.txt && break; sleep 0.1; done; sed -n 's/.*ACCEPT.*:/https:\\/\\/127.0.0.1:/p' "
       "server.txt | tr -d '\\n'",
       folder.path().string(), std::to_string(connections)});
  return made.out;
}

TEST(IoHttp, ACertificateThatNobodyKnowsIsSaidWithWhatToDo) {
  if (inlay::testing::run("bash", {"-c", "command -v openssl"}).code != 0) GTEST_SKIP() << "openssl is not installed";
  const inlay::testing::TempFolder folder;
  const std::string url = start_https(folder, 3);
  ASSERT_THAT(url, ::testing::StartsWith("https://127.0.0.1:"));
  ::unsetenv("SSL_CERT_FILE");
  ::unsetenv("MLFLOW_TRACKING_SERVER_CERT_PATH");
  const std::string error = http_error_of([&] { ask(parse_url(url), {}, 10); });
  if (error.find("needs libcurl") != error.npos) GTEST_SKIP() << error;
  EXPECT_THAT(error, HasSubstr(url + ": "));
  EXPECT_THAT(error, HasSubstr("; MLFLOW_TRACKING_SERVER_CERT_PATH or SSL_CERT_FILE names the certificate to trust"));
  ::setenv("SSL_CERT_FILE", (folder / "cert.pem").c_str(), 1);
  EXPECT_EQ(ask(parse_url(url), {}, 10).status, 200);
  ::setenv("SSL_CERT_FILE", (folder / "no.pem").c_str(), 1);
  EXPECT_THAT(http_error_of([&] { ask(parse_url(url), {}, 10); }), HasSubstr("no.pem"));
  ::unsetenv("SSL_CERT_FILE");
}

TEST(IoHttp, TextsAreEncoded) {
  EXPECT_EQ(percent_encoded("a b/ü~"), "a%20b%2F%C3%BC~");
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
}

}  // namespace
}  // namespace inlay::io
