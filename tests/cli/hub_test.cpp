#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/loopback_server.h"
#include "support/paths.h"

// Models and datasets by the names that they have on the hub.
namespace inlay::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string commit = "0123456789abcdef0123456789abcdef01234567";

bool has_curl() { return run("sh", {"-c", "command -v curl"}).code == 0; }

class CliHub : public ::testing::Test {
 protected:
  void SetUp() override {
    const CommandResult made = inlay({"init", folder / "base", "--preset", "tiny"});
    ASSERT_EQ(made.code, 0) << made.err;
    folder.write("rows.jsonl",
                 "{\"text\": \"one\"}\n{\"text\": \"two\"}\n{\"text\": \"three\"}\n{\"text\": \"four\"}\n");
    configure("org/tiny", "{path: " + (folder / "rows.jsonl").string() + "}");
  }

  void configure(const std::string& model, const std::string& dataset) {
    folder.write("run.yaml", "base_model: " + model + "\noutput_dir: run\ndatasets: [" + dataset +
                                 "]\nlearning_rate: 1e-3\nmax_steps: 2\nsequence_len: 32\ndtype: fp32\ndevice: cpu\n"
                                 "dataset_prepared_path: prepared\n");
  }

  // As huggingface_hub keeps it: blobs, and links to them under the names of a commit.
  void put_into_cache(const std::string& name, const fs::path& from) {
    const fs::path repository = folder.path() / "hf/hub" / name;
    fs::create_directories(repository / "blobs");
    fs::create_directories(repository / "refs");
    fs::create_directories(repository / "snapshots" / commit);
    for (const auto& entry : fs::directory_iterator(from)) {
      const fs::path blob = repository / "blobs" / ("blob-of-" + entry.path().filename().string());
      fs::copy_file(entry.path(), blob);
      fs::create_symlink("../../blobs/" + blob.filename().string(),
                         repository / "snapshots" / commit / entry.path().filename());
    }
    std::ofstream(repository / "refs/main") << commit;
  }

  CommandResult inlay_with_cache(const std::vector<std::string>& arguments,
                                 std::vector<std::pair<std::string, std::string>> more = {}) {
    CommandLimits limits;
    limits.environment = {{"HF_HOME", (folder / "hf").string()},
                          {"HF_HUB_CACHE", ""},
                          {"HF_TOKEN", ""},
                          {"HUGGING_FACE_HUB_TOKEN", ""},
                          {"HF_TOKEN_PATH", ""}};
    limits.environment.insert(limits.environment.end(), more.begin(), more.end());
    return inlay(arguments, limits);
  }

  TempFolder folder;
};

TEST_F(CliHub, AModelInTheCacheIsFoundByItsName) {
  put_into_cache("models--org--tiny", folder / "base");
  const CommandResult info = inlay_with_cache({"info", "org/tiny", "--json"});
  ASSERT_EQ(info.code, 0) << info.err;
  EXPECT_EQ(info.out, inlay({"info", folder / "base", "--json"}).out);
  const CommandResult trained = inlay_with_cache({"train", folder / "run.yaml"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(read_text(folder / "run/config.yaml"), HasSubstr("snapshots/" + commit));
  for (const char* revision : {"main", "0123456", commit.c_str()}) {
    EXPECT_EQ(inlay_with_cache({"plan", folder / "run.yaml", "--revision_of_model", revision}).code, 0) << revision;
  }
  EXPECT_EQ(inlay_with_cache({"plan", folder / "run.yaml", "--revision_of_model", "v2"}).code, 2);
  const auto taught = [&](const std::string& teacher) {
    return inlay_with_cache({"plan", folder / "run.yaml", "--kd_trainer", "true", "--kd_teacher", teacher});
  };
  EXPECT_EQ(taught("org/tiny").code, 0) << "a teacher is found by its name as well";
  EXPECT_THAT(taught("org/none").err, HasSubstr("org/none: no such model, neither as a path nor in the Hugging Face"));
  EXPECT_THAT(taught("none").err, HasSubstr("command line: kd_teacher: none: no such model folder"));
  EXPECT_EQ(inlay_with_cache({"info", "org/tiny"}, {{"HF_HUB_CACHE", (folder / "hf/hub").string()}}).code, 0);
}

// The folder of a cache is named by a commit, which is no name for a model.
TEST_F(CliHub, WhatIsExportedHasTheModelsName) {
  put_into_cache("models--org--tiny", folder / "base");
  const CommandResult result = inlay_with_cache({"export", "gguf", "org/tiny", folder / "tiny.gguf"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string file = read_text(folder / "tiny.gguf");
  EXPECT_THAT(file.substr(0, 4096), HasSubstr(std::string("general.name\x08\0\0\0\x04\0\0\0\0\0\0\0tiny", 28)));
  EXPECT_THAT(file.substr(0, 4096), Not(HasSubstr(commit)));
}

TEST_F(CliHub, ADownloadThatDidNotComeToItsEnd) {
  put_into_cache("models--org--tiny", folder / "base");
  fs::remove(folder.path() / "hf/hub/models--org--tiny/blobs/blob-of-model.safetensors");
  const CommandResult result = inlay_with_cache({"eval", "org/tiny", "--data", folder / "rows.jsonl"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("model.safetensors is a link to a file that is not there: the model's download is "
                                    "not complete"));
}

TEST_F(CliHub, AnAdapterNamesItsModelInTheCache) {
  put_into_cache("models--org--tiny", folder / "base");
  const CommandResult trained =
      inlay_with_cache({"train", folder / "run.yaml", "--adapter", "lora", "--lora_target_linear", "true", "--lora_r",
                        "8", "--lora_alpha", "8"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  nlohmann::json config = nlohmann::json::parse(read_text(folder / "run/adapter_config.json"));
  config["base_model_name_or_path"] = "org/tiny";
  folder.write("run/adapter_config.json", config.dump());
  const CommandResult said = inlay_with_cache({"generate", folder / "run", "--ids", "1,2", "--max-new-tokens", "2"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.err, HasSubstr("is an adapter of org/tiny\n"));
  // With nobody who says anything, chat ends as soon as it has loaded them.
  const std::string command = "HF_HOME=\"$1\" HF_HUB_CACHE= \"$0\" chat \"$2\" --chat-template chatml < /dev/null";
  const CommandResult chat = run("bash", {"-c", command, program().string(), folder / "hf", folder / "run"});
  EXPECT_EQ(chat.code, 0) << chat.err;
  EXPECT_THAT(chat.err, HasSubstr("is an adapter of org/tiny\n"));
}

TEST_F(CliHub, WhatIsNotThereSaysHowToGetIt) {
  for (const auto& command : std::vector<std::vector<std::string>>{{"plan", folder / "run.yaml"},
                                                                   {"info", "org/tiny"},
                                                                   {"generate", "org/tiny", "--prompt", "x"},
                                                                   {"chat", "org/tiny"},
                                                                   {"tokenize", "org/tiny"},
                                                                   {"merge", "org/tiny", "a", "b"},
                                                                   {"export", "gguf", "org/tiny", "a.gguf"}}) {
    const CommandResult result = inlay_with_cache(command);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr("org/tiny: no such model, neither as a path nor in the Hugging Face cache (" +
                                      (folder / "hf/hub").string() +
                                      "); to download it, add --download, or run: hf download "
                                      "org/tiny"))
        << command[0];
  }
}

TEST_F(CliHub, ADatasetInTheCacheIsFoundByItsName) {
  fs::create_directories(folder / "data");
  folder.write("data/README.md",
               "---\nlicense: mit\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n"
               "    path: train-*\n  - split: test\n    path: test.jsonl\n- config_name: small\n  data_files: "
               "small.jsonl\n---\n# Some data\n");
  folder.write("data/train-00000-of-00002.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  folder.write("data/train-00001-of-00002.jsonl", "{\"text\": \"three\"}\n");
  folder.write("data/test.jsonl", "{\"text\": \"four\"}\n");
  folder.write("data/small.jsonl", "{\"text\": \"five\"}\n{\"text\": \"six\"}\n");
  put_into_cache("datasets--org--data", folder / "data");
  const auto rows = [&](const std::string& dataset) {
    configure((folder / "base").string(), dataset);
    const CommandResult data = inlay_with_cache({"data", folder / "run.yaml", "--json"});
    EXPECT_EQ(data.code, 0) << data.err;
    return data.code == 0 ? nlohmann::json::parse(data.out).at("files")[0].at("rows").get<int>() : -1;
  };
  EXPECT_EQ(rows("org/data"), 3);
  EXPECT_EQ(rows("{path: org/data, split: test}"), 1);
  EXPECT_EQ(rows("{path: org/data, split: 'train[:67%]'}"), 2);
  EXPECT_EQ(rows("{path: org/data, name: small}"), 2);
  EXPECT_EQ(rows("{path: org/data, data_files: [test.jsonl, small.jsonl]}"), 3);
  configure((folder / "base").string(), "{path: org/data, split: dev}");
  EXPECT_THAT(inlay_with_cache({"data", folder / "run.yaml"}).err,
              HasSubstr("org/data: it has no split dev; it has train, test"));
  configure((folder / "base").string(), "{path: org/data, name: large}");
  EXPECT_THAT(inlay_with_cache({"data", folder / "run.yaml"}).err,
              HasSubstr("org/data: it has no subset large; set name to one of default, small"));
  configure((folder / "base").string(), "org/other");
  EXPECT_THAT(inlay_with_cache({"data", folder / "run.yaml"}).err,
              HasSubstr("or run: hf download --repo-type dataset org/other"));
}

// A hub with one model, which wants a token and sends files from elsewhere.
class CliHubDownload : public CliHub {
 protected:
  void SetUp() override {
    if (!has_curl()) GTEST_SKIP() << "there is no curl";
    CliHub::SetUp();
    // A curl that notes what it was called with: everybody on the machine can read that.
    folder.write("bin", "");
    fs::remove(folder / "bin");
    fs::create_directories(folder / "bin");
    const std::string real = run("sh", {"-c", "command -v curl"}).out;
    folder.write("bin/curl", "#!/bin/sh\necho \"$@\" >> " + (folder / "calls").string() + "\nexec " +
                                 real.substr(0, real.find('\n')) + " \"$@\"\n");
    fs::permissions(folder / "bin/curl", fs::perms::owner_all);
  }

  LoopbackServer::Response answer(const LoopbackServer::Request& request) const {
    if (request.header("Authorization") != "Bearer hf_secret") return {.status = 401};
    if (request.path == "/api/models/org/tiny/revision/main") {
      nlohmann::json files = nlohmann::json::array();
      for (const auto& entry : fs::directory_iterator(folder / "base")) {
        files.push_back({{"rfilename", entry.path().filename().string()}});
      }
      files.push_back({{"rfilename", "pytorch_model.bin"}});
      files.push_back({{"rfilename", "../outside.json"}});
      return {.body = nlohmann::json{{"sha", commit}, {"siblings", files}}.dump()};
    }
    const std::string begin = "/org/tiny/resolve/" + commit + "/";
    if (request.path.starts_with(begin))
      return {.status = 302, .location = "/cdn/" + request.path.substr(begin.size())};
    if (request.path.starts_with("/cdn/")) return {.body = read_text(folder / "base" / request.path.substr(5))};
    return {.status = 404};
  }

  CommandResult download(const std::vector<std::string>& arguments, const std::string& url, const std::string& token) {
    return inlay_with_cache(
        arguments,
        {{"HF_ENDPOINT", url}, {"HF_TOKEN", token}, {"PATH", (folder / "bin").string() + ":" + std::getenv("PATH")}});
  }
};

TEST_F(CliHubDownload, AModelComesFromAMirrorAndTheTokenIsSeenByNobody) {
  const LoopbackServer server([this](const auto& request) { return answer(request); });
  const CommandResult info = download({"info", "org/tiny", "--json", "--download"}, server.url() + "/", "hf_secret");
  ASSERT_EQ(info.code, 0) << info.err;
  EXPECT_EQ(info.out, inlay({"info", folder / "base", "--json"}).out);
  EXPECT_THAT(info.err, AllOf(HasSubstr("downloading org/tiny: model.safetensors"), Not(HasSubstr("hf_secret"))));
  EXPECT_THAT(read_text(folder / "calls"), AllOf(HasSubstr("--config -"), Not(HasSubstr("hf_secret"))));
  const fs::path snapshot = folder.path() / "hf/hub/models--org--tiny/snapshots" / commit;
  EXPECT_EQ(read_text(snapshot / "model.safetensors"), read_text(folder / "base/model.safetensors"));
  EXPECT_FALSE(fs::exists(snapshot / "pytorch_model.bin"));
  EXPECT_FALSE(fs::exists(snapshot.parent_path() / "outside.json"));
  // From now on it is there, also for others.
  const std::size_t asked = server.requests().size();
  EXPECT_EQ(inlay_with_cache({"info", "org/tiny"}).code, 0);
  EXPECT_EQ(server.requests().size(), asked);
}

TEST_F(CliHubDownload, WhatIsThereInPartIsCompleted) {
  const LoopbackServer server([this](const auto& request) { return answer(request); });
  const fs::path snapshot = folder.path() / "hf/hub/models--org--tiny/snapshots" / commit;
  fs::create_directories(snapshot);
  fs::copy_file(folder / "base/config.json", snapshot / "config.json");
  EXPECT_EQ(inlay_with_cache({"info", "org/tiny"}).code, 0);
  EXPECT_EQ(download({"info", "org/tiny", "--download"}, server.url(), "hf_secret").code, 0);
  EXPECT_TRUE(fs::exists(snapshot / "model.safetensors"));
}

TEST_F(CliHubDownload, TheTokenOfAnEarlierLoginIsUsed) {
  const LoopbackServer server([this](const auto& request) { return answer(request); });
  fs::create_directories(folder / "hf");
  folder.write("hf/token", "hf_secret\n");
  EXPECT_EQ(download({"info", "org/tiny", "--download"}, server.url(), "").code, 0);
}

TEST_F(CliHubDownload, TheTokenMayStandWhereOtherProgramsLookForIt) {
  const LoopbackServer server([this](const auto& request) { return answer(request); });
  folder.write("base/README.md", "---\nlicense: mit\n---\n");
  const std::vector<std::string> arguments = {"info", "org/tiny", "--download"};
  const std::string file = folder.write("elsewhere", "hf_secret\n");
  EXPECT_EQ(inlay_with_cache(arguments, {{"HF_ENDPOINT", server.url()}, {"HF_TOKEN_PATH", file}}).code, 0);
  const fs::path home = folder.path() / "hf";
  EXPECT_TRUE(fs::exists(home / "hub/models--org--tiny/snapshots" / commit / "README.md")) << "it has the licence";
  fs::remove_all(home);
  EXPECT_EQ(inlay_with_cache(arguments, {{"HF_ENDPOINT", server.url()}, {"HUGGING_FACE_HUB_TOKEN", "hf_secret"}}).code,
            0);
}

TEST_F(CliHubDownload, AFileThatWasBegunGoesOnWhereItStopped) {
  const LoopbackServer server([this](const auto& request) { return answer(request); });
  const std::string weights = read_text(folder / "base/model.safetensors");
  const fs::path part = folder.path() / "hf/hub/models--org--tiny/incomplete" / commit;
  fs::create_directories(part);
  std::ofstream(part / "model.safetensors", std::ios::binary) << weights.substr(0, 1000);
  const CommandResult info = download({"info", "org/tiny", "--download"}, server.url(), "hf_secret");
  ASSERT_EQ(info.code, 0) << info.err;
  EXPECT_EQ(read_text(folder.path() / "hf/hub/models--org--tiny/snapshots" / commit / "model.safetensors"), weights);
  bool resumed = false;
  for (const auto& request : server.requests()) resumed = resumed || request.header("Range") == "bytes=1000-";
  EXPECT_TRUE(resumed);
}

TEST_F(CliHubDownload, WhatGoesWrongIsSaid) {
  std::string gone;
  {
    const LoopbackServer server([this](const auto& request) { return answer(request); });
    gone = server.url();
    const CommandResult refused = download({"info", "org/tiny", "--download"}, server.url(), "hf_wrong");
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err,
                AllOf(HasSubstr("cannot be downloaded"), HasSubstr("HF_TOKEN"), Not(HasSubstr("hf_wrong"))));
  }
  const CommandResult unreachable = download({"info", "org/tiny", "--download"}, gone, "hf_secret");
  EXPECT_EQ(unreachable.code, 2);
  EXPECT_THAT(unreachable.err, HasSubstr("that server cannot be reached from here (HF_ENDPOINT names another)"));
}

}  // namespace
}  // namespace inlay::testing
