#include "io/hub_download.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "core/environment.h"
#include "core/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"

namespace inlay::io {

namespace fs = std::filesystem;

namespace {

constexpr int not_found = 127;

// Runs a program and hands it a text on its standard input. Its exit code; what it prints goes to standard error.
int run_program(const std::vector<std::string>& command, const std::string& input) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) user_error("a pipe cannot be created: {}", std::strerror(errno));
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) user_error("a process for {} cannot be started: {}", command.front(), std::strerror(errno));
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::dup2(ends[0], STDIN_FILENO);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::execvp(argv[0], argv.data());
    std::_Exit(not_found);
  }
  ::close(ends[0]);
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before);  // it may end without reading
  for (std::size_t at = 0; at < input.size();) {
    const ssize_t written = ::write(ends[1], input.data() + at, input.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) break;
    at += static_cast<std::size_t>(written);
  }
  ::close(ends[1]);
  ::sigaction(SIGPIPE, &before, nullptr);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  text.erase(0, text.find_first_not_of(" \t\r\n"));
  return text;
}

// Empty where there is none.
std::string token() {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (const auto given = environment(name)) return trimmed(*given);
  }
  fs::path file = environment("HF_TOKEN_PATH").value_or("");
  if (file.empty()) file = fs::path(environment("HF_HOME").value_or(hub_cache().parent_path())) / "token";
  return is_file(file) ? trimmed(read_file(file, 4096)) : "";
}

std::string endpoint() {
  std::string url = environment("HF_ENDPOINT").value_or("https://huggingface.co");
  while (url.ends_with('/')) url.pop_back();
  return url;
}

// A text in a file of curl's options.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) result += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return result + "\"";
}

std::string escaped(const std::string& path) {
  std::string result;
  for (const char c : path) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || std::strchr("-._~/", c) != nullptr;
    result += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return result;
}

// curl's exit code. A file that is there goes on where it ends.
int get(const std::string& url, const fs::path& to, bool show) {
  std::string options = fmt::format(
      "url = {}\noutput = {}\nfail\nlocation\nshow-error\nretry = 3\ncontinue-at = \"-\"\nproto = \"=http,https\"\n{}",
      quoted(url), quoted(to.string()), show ? "progress-bar\n" : "silent\n");
  if (const std::string bearer = token(); !bearer.empty()) {
    options += "header = " + quoted("Authorization: Bearer " + bearer) + "\n";
  }
  return run_program({"curl", "--disable", "--config", "-"}, options);
}

[[noreturn]] void cannot(const std::string& what, const std::string& url, int code) {
  // Of curl's codes: 22 is an answer of 400 or more, 6 and 7 no server.
  user_error("{}: {} cannot be downloaded (curl ended with {}){}", what, url, code,
             code == 22
                 ? "; is the name right? Some models require their terms to be accepted on the web page and a token in "
                   "HF_TOKEN"
             : code == 6 || code == 7 ? "; that server cannot be reached from here (HF_ENDPOINT names another)"
                                      : "");
}

class Download {
 public:
  Download(const HubName& name, const fs::path& folder, const HubAccess& access)
      : name_(name), folder_(folder), access_(access) {}

  fs::path run(const std::function<bool(const std::string& file)>& wanted) {
    const std::string kind = name_.kind == HubKind::model ? "models" : "datasets";
    const std::string revision = name_.revision.empty() ? "main" : name_.revision;
    const fs::path listing = folder_ / ".inlay-listing";
    io::remove_all(listing);
    const std::string url = fmt::format("{}/api/{}/{}/revision/{}", endpoint(), kind, name_.name, escaped(revision));
    const int code = get(url, listing, false);
    if (code == not_found) return by_hf();
    if (code != 0) cannot(name_.name, url, code);
    const Json answer = Json::read(listing);
    const std::string commit = answer.string("sha");
    if (!is_hub_name("x/" + commit)) user_error("{}: {} answers with a commit '{}'", name_.name, url, commit);
    std::vector<std::string> files;
    for (const Json& entry : answer.array("siblings")) {
      const std::string file = entry.string("rfilename");
      if (is_below(file) && wanted(file)) files.push_back(file);
    }
    if (files.empty()) user_error("{}: {} has no files that can be used here", name_.name, endpoint());
    const fs::path snapshot = folder_ / "snapshots" / commit;
    for (std::size_t i = 0; i < files.size(); ++i) take(files[i], commit, snapshot, i + 1, files.size());
    if (is_hub_name("x/" + revision) && revision != commit) {
      create_folders(folder_ / "refs");
      write_file_atomic(folder_ / "refs" / revision, std::string_view(commit));
    }
    io::remove_all(listing);
    return snapshot;
  }

 private:
  // A server must not write elsewhere.
  static bool is_below(const std::string& file) {
    const fs::path path(file);
    return !file.empty() && !path.is_absolute() && std::ranges::find(path, fs::path("..")) == path.end();
  }

  void take(const std::string& file, const std::string& commit, const fs::path& snapshot, std::size_t number,
            std::size_t count) {
    const fs::path to = snapshot / file, part = folder_ / "incomplete" / commit / file;
    if (io::exists(to)) return;
    if (access_.say) access_.say(fmt::format("downloading {}: {} ({} of {})", name_.name, file, number, count));
    create_folders(to.parent_path());
    create_folders(part.parent_path());
    const std::string url =
        fmt::format("{}/{}{}/resolve/{}/{}", endpoint(), name_.kind == HubKind::dataset ? "datasets/" : "", name_.name,
                    commit, escaped(file));
    const bool show = ::isatty(STDERR_FILENO) == 1, begun = io::exists(part);
    int code = get(url, part, show);
    if (code != 0 && begun) {  // what was begun may not be its beginning, or all of it
      io::remove_all(part);
      code = get(url, part, show);
    }
    if (code != 0) cannot(name_.name, url, code);
    if (!io::exists(part)) write_file_atomic(part, std::string_view());  // curl makes no file of nothing
    io::rename(part, to);
  }

  fs::path by_hf() {
    std::vector<std::string> command = {"hf", "download", name_.name};
    if (name_.kind == HubKind::dataset) command.insert(command.end(), {"--repo-type", "dataset"});
    if (!name_.revision.empty()) command.insert(command.end(), {"--revision", name_.revision});
    command.insert(command.end(), {"--cache-dir", hub_cache().string()});
    const int code = run_program(command, "");
    if (code == not_found) {
      user_error("{}: neither curl nor hf is on the PATH to download it with (pip install huggingface_hub)",
                 name_.name);
    }
    const auto found = find_in_cache(name_);
    if (code != 0 || !found) user_error("{}: hf download ended with {}", name_.name, code);
    return *found;
  }

  const HubName& name_;
  const fs::path& folder_;
  const HubAccess& access_;
};

}  // namespace

fs::path download(const HubName& name, const fs::path& folder, const HubAccess& access,
                  const std::function<bool(const std::string& file)>& wanted) {
  return Download(name, folder, access).run(wanted);
}

}  // namespace inlay::io
