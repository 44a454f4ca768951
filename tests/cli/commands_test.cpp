#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "io/safetensors.h"
#include "support/command.h"
#include "support/device_tensors.h"
#include "support/fixtures.h"
#include "support/paths.h"

namespace inlay::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

const std::string model = source_folder().string() + "/tests/golden/models/llama_llama3_tied";
const std::string documents = model + "/data.jsonl";

TEST(CliCommands, ExitCodesTellTheUsersMistakesFromOurs) {
  EXPECT_EQ(inlay({"--help"}).code, 0);
  EXPECT_EQ(inlay({"--version"}).code, 0);
  EXPECT_EQ(inlay({}).code, 2);
  EXPECT_EQ(inlay({"fly"}).code, 2);
  EXPECT_EQ(inlay({"train"}).code, 2);
  EXPECT_EQ(inlay({"train", "no-such-file.yaml"}).code, 2);
  EXPECT_EQ(inlay({"info", "no-such-folder"}).code, 2);
}

// In words of ours, not the parser's: without enumerators as bytes, or limits of 300 digits.
TEST(CliCommands, AWrongCommandLineIsExplained) {
  const auto said = [](const std::vector<std::string>& arguments) {
    const CommandResult result = inlay(arguments);
    EXPECT_EQ(result.code, 2);
    return result.err;
  };
  EXPECT_EQ(said({"generate", "m", "--prompt", "x", "--as", "chatt"}),
            "inlay: generate: --as: expected alpaca, chat or text, got 'chatt'; inlay generate --help says more\n");
  EXPECT_EQ(
      said({"generate", "m", "--prompt", "x", "--max-new-tokens", "0"}),
      "inlay: generate: --max-new-tokens: expected a whole number from 1 to 100000000, got '0'; inlay generate --help "
      "says more\n");
  EXPECT_THAT(said({"report", "r", "--follow", "--port", "70000"}),
              HasSubstr("--port: expected a whole number from 1 to 65535, got '70000'"));
  EXPECT_THAT(said({"generate", "m", "--temperature", "warm"}),
              HasSubstr("--temperature: expected a number, got 'warm'"));
  EXPECT_THAT(said({"generate", "m", "Hello"}),
              HasSubstr("generate: 'Hello' is one argument too many: a prompt is given with --prompt;"));
  EXPECT_THAT(said({"init-config", "-o", "x"}), HasSubstr("init-config: -o is not an option;"));
  EXPECT_THAT(said({"generate", "m", "--prompt"}), HasSubstr("generate: --prompt needs a value;"));
  EXPECT_THAT(said({"export", "gguf", "m"}), HasSubstr("export gguf: output is missing: The file to write"));
  EXPECT_THAT(said({"export", "gguf", "m", "o", "--type", "q8"}),
              HasSubstr("--type: expected auto, f32, f16, bf16, q8_0 or mxfp4, got 'q8'"));
  EXPECT_THAT(said({"chat"}), HasSubstr("inlay: chat: model is missing: Hugging Face model folder"));
  EXPECT_EQ(said({"export"}), "inlay: export needs the name of a command; inlay export --help lists them\n");
  EXPECT_THAT(said({"train", "run.yaml", "--resum"}), HasSubstr("--resum needs a value; did you mean --resume?"));
  EXPECT_EQ(said({"generate", "m", "--top-p", "0.5", "--top-p", "0.6", "--prompt", "x"}),
            "inlay: generate: --top-p is given 2 times; expected once; inlay generate --help says more\n");
  EXPECT_THAT(said({"generate", "m", "--seed", "-1"}),
              HasSubstr("--seed: expected a whole number of at least 0, got '-1'"));
  EXPECT_THAT(said({"init", "m", "--preset", "tiny", "--seed", "-1"}),
              HasSubstr("init: --seed: expected a whole number of at least 0, got '-1'"));
  EXPECT_THAT(said({"generate", "m", "--ids", "1,x"}), HasSubstr("--ids: expected a whole number, got '1,x'"));
  EXPECT_THAT(said({"cache", "clear", "--yes=perhaps"}), HasSubstr("--yes takes no value, got 'perhaps';"));
  EXPECT_EQ(said({"train", "run.yaml", "--resume=5"}),
            "inlay: train: --resume takes no value, got '5'; inlay train --help says more\n");
  EXPECT_THAT(said({"train", "run.yaml", "--resume", "5"}),
              HasSubstr("unexpected argument '5'; expected --key value; --resume takes no value, and continues from "
                        "the latest checkpoint"));
  EXPECT_EQ(said({"-x"}), "inlay: -x is not an option; inlay --help says more\n");
  EXPECT_THAT(said({}), HasSubstr("Usage: inlay [OPTIONS] SUBCOMMAND"));
}

// Whatever a benchmark's option takes, a wrong value is answered in words of ours.
TEST(CliCommands, WrongValuesOfBenchmarksAreExplained) {
  const auto said = [](const std::string& name, const std::string& option, const std::string& value) {
    const CommandResult result = inlay({"bench", name, option, value});
    EXPECT_EQ(result.code, 2);
    const std::string before = fmt::format("inlay: bench {}: {}: ", name, option);
    EXPECT_THAT(result.err, StartsWith(before));
    const std::string behind = fmt::format("; inlay bench {} --help says more\n", name);
    EXPECT_THAT(result.err, EndsWith(behind));
    if (result.err.size() < before.size() + behind.size()) return result.err;
    return result.err.substr(before.size(), result.err.size() - before.size() - behind.size());
  };
  EXPECT_EQ(said("quantise-fp8", "--tokens", "-1"), "expected a whole number of at least 1, got '-1'");
  EXPECT_EQ(said("quantise-fp8", "--tokens", "1.5"), "expected a whole number of at least 1, got '1.5'");
  EXPECT_EQ(said("matmul", "--m", "0"), "expected a whole number of at least 1, got '0'");
  EXPECT_EQ(said("matmul", "--iterations", "-1"), "expected a whole number of at least 0, got '-1'");
  EXPECT_EQ(said("train-step", "--bandwidth", "0"), "expected a number above 0, got '0'");
  EXPECT_EQ(said("train-step", "--zero", "9"), "expected a whole number from 0 to 3, got '9'");
  EXPECT_EQ(said("fused-linear-ce", "--ignored", "two"), "expected a number from 0 to 1, got 'two'");
  EXPECT_EQ(said("train-step", "--matmul-dtype", "fp4"), "expected auto or fp8, got 'fp4'");
  EXPECT_EQ(said("osft", "--route", "fast"), "expected auto, direct, dense or factored, got 'fast'");
  // Each option of each of them that says in its help what it takes.
  std::istringstream benchmarks(inlay({"bench", "--help"}).out);
  int tried = 0;
  for (std::string line; std::getline(benchmarks, line);) {
    std::string name;
    if (!line.starts_with("  ") || line.starts_with("  -") || !(std::istringstream(line) >> name)) continue;
    std::istringstream options(inlay({"bench", name, "--help"}).out);
    for (std::string option; std::getline(options, option);) {
      const std::size_t begin = option.find("--"), end = option.find_first_of(", ", begin);
      const std::size_t check = option.find(':', end);
      if (!option.starts_with("  -") || check == option.npos || check > option.find("  ", end)) continue;
      SCOPED_TRACE(option);
      EXPECT_THAT(said(name, option.substr(begin, end - begin), "wrong"), StartsWith("expected "));
      ++tried;
    }
  }
  EXPECT_GT(tried, 20);
}

TEST(CliCommands, HelpIsAWordAsWellAndReadable) {
  const CommandResult help = inlay({"help", "generate"});
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.out, inlay({"generate", "--help"}).out);
  EXPECT_THAT(help.out, HasSubstr("Usage: inlay generate [OPTIONS] model"));
  for (const char* command : {"generate", "report", "grad"}) {
    for (const char c : inlay({command, "--help"}).out) ASSERT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= ' ');
  }
}

TEST(CliCommands, AFileInPlaceOfAModelIsNamedAsOne) {
  const TempFolder folder;
  const std::string weights = folder.write("model.safetensors", "x").string();
  EXPECT_EQ(inlay({"info", weights}).err,
            "inlay: " + weights + ": is a file; expected a model folder, or its config.json\n");
  EXPECT_EQ(inlay({"chat", model + "/config.json"}).err,
            "inlay: " + model + "/config.json: is a file; expected the folder of a model\n");
}

// What would be said beyond the model's positions is not refused, but it is said that it may make no sense.
TEST(CliCommands, GenerateSaysWhereTheModelEnds) {
  const TempFolder folder;
  ASSERT_EQ(inlay({"init", "--preset", "tiny", folder / "m"}).code, 0);
  const auto config = nlohmann::json::parse(read_text(folder / "m/config.json"));
  const auto most = config.at("max_position_embeddings").get<int>();
  const auto said = [&](int count) {
    return inlay({"generate", folder / "m", "--ids", "1,2", "--max-new-tokens", std::to_string(count), "--stop", "0",
                  "--device", "cpu"})
        .err;
  };
  const std::string warning = "tokens; what it says beyond them may make no sense";
  EXPECT_THAT(said(most - 1), HasSubstr(warning));
  EXPECT_THAT(said(4), ::testing::Not(HasSubstr(warning)));
}

TEST(CliCommands, InfoSaysWhoTellsOfOtherFiles) {
  const TempFolder folder;
  const auto said = [&](const std::string& name, const std::string& text) {
    const CommandResult result = inlay({"info", folder.write(name, text)});
    EXPECT_EQ(result.code, 2);
    return result.err;
  };
  const std::string row = R"({"text": "a"})", no_model = ": is not a model: expected a model folder, its config.json";
  for (const auto& [name, text] : {std::pair("facts.jsonl", row), std::pair("facts.json", row + "\n" + row),
                                   std::pair("list.json", "[" + row + "]"), std::pair("one.json", row)}) {
    EXPECT_THAT(said(name, text), HasSubstr(name + no_model));
    EXPECT_THAT(said(name, text), HasSubstr("for data, inlay data RUN.yaml shows")) << name;
  }
  EXPECT_THAT(said("run.yaml", "a: 1\n"), HasSubstr("inlay plan shows what a configuration needs"));
  EXPECT_THAT(said("config.json", "{"), HasSubstr("config.json: not valid JSON: "));
}

TEST(CliCommands, InfoSaysHowFarAnUnknownFamilyIs) {
  const TempFolder folder;
  const auto file = folder.write("config.json", R"({"model_type": "stranger", "kv_lora_rank": 512})");
  for (const std::string& place : {folder.path().string(), file.string()}) {
    const CommandResult info = inlay({"info", place});
    EXPECT_EQ(info.code, 2);
    EXPECT_THAT(info.err, HasSubstr("config.json: model_type 'stranger' is not a family that inlay trains"));
    EXPECT_THAT(info.err, HasSubstr("gemma2, gemma3, gemma3_text, "));
    EXPECT_THAT(info.err, HasSubstr("mistral, mistral3, mixtral, "));
    EXPECT_THAT(info.err, HasSubstr("keys that no family has: kv_lora_rank"));
    EXPECT_THAT(info.err, HasSubstr("none of them can read the configuration"));
  }
}

// Files, folders and patterns, as datasets of a run are named; conversations by another template than the model's own.
TEST(CliCommands, EvaluatesWhatRunsRead) {
  const TempFolder folder;
  ASSERT_EQ(inlay({"init", folder / "base", "--preset", "tiny"}).code, 0);
  folder.write("texts.jsonl", "{\"text\": \"one two three\"}\n");
  fs::create_directories(folder / "many");
  folder.write("many/a.jsonl", "{\"text\": \"one two three\"}\n");
  folder.write("chats.jsonl",
               "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": "
               "\"yes\"}]}\n");
  const auto eval = [&](const std::string& data, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"eval", folder / "base", "--data", folder / data, "--json", "--device", "cpu"});
    return inlay(more);
  };
  const CommandResult file = eval("texts.jsonl");
  ASSERT_EQ(file.code, 0) << file.err;
  EXPECT_EQ(eval("many").out, file.out);
  EXPECT_EQ(eval("many/*.jsonl").out, file.out);
  EXPECT_EQ(eval("chats.jsonl").code, 2) << "the model has no template";
  const CommandResult chats = eval("chats.jsonl", {"--chat-template", "chatml"});
  EXPECT_EQ(chats.code, 0) << chats.err;
}

TEST(CliCommands, MessagesNameFileKeyAndTensor) {
  const TempFolder folder;
  fs::copy(model, folder / "m");
  const auto eval = [&] { return inlay({"eval", folder / "m", "--data", folder / "m/data.jsonl", "--device", "cpu"}); };

  folder.write("m/data.jsonl", "{\"input_ids\": [1, 99999]}\n");
  EXPECT_THAT(eval().err, HasSubstr("data.jsonl:1: input_ids"));
  folder.write("m/data.jsonl", "{\"input_ids\": [1, 2], \"labels\": [1, -7]}\n");
  EXPECT_THAT(eval().err, HasSubstr("data.jsonl:1: labels"));
  fs::copy(documents, folder / "m/data.jsonl", fs::copy_options::overwrite_existing);

  const std::string config = read_text(folder / "m/config.json");
  std::string wider = config;
  wider.replace(wider.find("\"intermediate_size\": "), 21, "\"intermediate_size\": 1");
  folder.write("m/config.json", wider);
  const CommandResult shape = eval();
  EXPECT_EQ(shape.code, 2);
  EXPECT_THAT(shape.err, HasSubstr("gate_proj.weight has shape"));
  std::string deeper = config;
  deeper.replace(deeper.find("\"num_hidden_layers\": "), 21, "\"num_hidden_layers\": 1");
  folder.write("m/config.json", deeper);
  const CommandResult missing = eval();
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("is missing"));
  folder.write("m/config.json", config);

  const std::string weights = read_text(folder / "m/model.safetensors");
  folder.write("m/model.safetensors", weights.substr(0, weights.size() / 2));
  const CommandResult truncated = eval();
  EXPECT_EQ(truncated.code, 2);
  EXPECT_THAT(truncated.err, HasSubstr("model.safetensors"));
}

TEST(CliCommands, AskingForCudaWhereThereIsNoneIsAClearError) {
  if (backend::cuda::available()) GTEST_SKIP() << "there is a GPU";
  const CommandResult result = inlay({"eval", model, "--data", documents, "--device", "cuda"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("device: cuda was asked for"));
}

TEST(CliCommands, GradWritesEveryGradientAndTheLogits) {
  const TempFolder folder;
  for (const char* policy : {"keep", "recompute"}) {
    const std::string out = folder / (std::string(policy) + ".safetensors");
    const CommandResult result = inlay({"grad", model, "--data", documents, "--out", out, "--logits", "--device", "cpu",
                                        "--policy", policy, "--json"});
    ASSERT_EQ(result.code, 0) << result.err;
    const Fixture fixture(model);
    EXPECT_NEAR(nlohmann::json::parse(result.out).at("loss").get<double>(), fixture.expected.at("loss").get<double>(),
                1e-5);
    const io::SafetensorsFile ours(out);
    for (const std::string& name : fixture.tensors.names()) {
      ASSERT_NE(ours.find(name), nullptr) << name;
      const ConstView view = ours.tensor(name);
      EXPECT_LE(relative_error({view.as<float>(), view.as<float>() + view.size()}, fixture.tensor(name)), 1e-5) << name;
    }
    EXPECT_EQ(inlay({"grad", model, "--data", documents, "--out", out}).code, 2)
        << "an existing file is not overwritten";
  }
  EXPECT_EQ(read_text(folder / "keep.safetensors"), read_text(folder / "recompute.safetensors"));
}

TEST(CliCommands, PlanNeedsOnlyTheConfiguration) {
  const TempFolder folder;
  fs::create_directory(folder / "m");
  fs::copy(model + "/config.json", folder / "m/config.json");
  folder.write("run.yaml", "base_model: " + (folder / "m").string() + "\noutput_dir: " + (folder / "o").string() +
                               "\ndatasets: [{path: nowhere.jsonl}]\nlearning_rate: 1e-4\n");
  for (const std::string device : {"cpu", "cuda"}) {
    const CommandResult result = inlay({"plan", folder / "run.yaml", "--json", "--device", device});
    ASSERT_EQ(result.code, 0) << result.err;
    const auto json = nlohmann::json::parse(result.out);
    std::size_t sum = 0;
    for (const auto& [name, bytes] : json.at("classes").items()) sum += bytes.get<std::size_t>();
    EXPECT_EQ(sum, json.at("device_peak_bytes").get<std::size_t>());
    EXPECT_GT(json.at("host_peak_bytes").get<std::size_t>(), 0u);
  }
  EXPECT_FALSE(fs::exists(folder / "o"));
}

TEST(CliCommands, PlanOfManyProcesses) {
  const TempFolder folder;
  ASSERT_EQ(inlay({"init", folder / "m", "--preset", "llama-8b", "--no-weights"}).code, 0);
  folder.write("run.yaml", "base_model: " + (folder / "m").string() + "\noutput_dir: " + (folder / "o").string() +
                               "\ndatasets: [{path: nowhere.jsonl}]\nlearning_rate: 1e-4\ndevice: cuda\ndtype: bf16\n" +
                               "sequence_len: 4096\nmicro_batch_size: 1\nmemory: {device: 138}\n");
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", folder / "run.yaml"});
    return inlay(more);
  };
  const auto json = [&](std::vector<std::string> more) {
    more.push_back("--json");
    const CommandResult result = plan(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  };
  EXPECT_FALSE(json({}).contains("team"));
  // Each stage divides more; weights that are gathered for every pass are sent more often.
  std::size_t memory = json({})["device_peak_bytes"];
  double sent = 0;
  for (const std::string zero : {"1", "2", "3"}) {
    const auto result = json({"--processes", "16", "--parallel.zero", zero});
    EXPECT_EQ(result["team"]["nodes"], 2) << "eight to a node, unless told";
    EXPECT_EQ(result["team"]["zero"], std::stoi(zero));
    EXPECT_LT(result["device_peak_bytes"], memory) << zero;
    EXPECT_GE(result["team"]["sent_bytes"], sent) << zero;
    EXPECT_EQ(result["team"]["sent_between_nodes_bytes"], result["team"]["sent_bytes"]);
    EXPECT_EQ(result["team"]["smallest_number_of_processes"], 1);
    memory = result["device_peak_bytes"];
    sent = result["team"]["sent_bytes"];
  }
  EXPECT_EQ(json({"--processes", "16"})["team"]["zero"], 0) << "auto: the lowest that fits";
  const auto node = json({"--processes", "16", "--parallel.zero", "3", "--parallel.shard", "node"})["team"];
  EXPECT_EQ(node["shard"], "node");
  EXPECT_LT(node["sent_between_nodes_bytes"], node["sent_bytes"]);
  const auto slow = json({"--processes", "16", "--parallel.zero", "3", "--link", "pcie,eth100"})["team"];
  EXPECT_EQ(slow["sent_bytes"], sent);
  EXPECT_GT(slow["step_seconds"], slow["compute_seconds"]);
  EXPECT_THAT(slow["links"].get<std::string>(), HasSubstr("100 Gb/s Ethernet"));
  EXPECT_THAT(plan({"--processes", "16", "--parallel.zero", "3"}).out,
              HasSubstr("16 processes on 2 nodes, ZeRO 3, divided among all"));

  // Less memory, more to divide.
  int least = 0;
  for (const auto& [device, zero] : {std::pair{"80", 1}, {"60", 1}, {"45", 2}, {"30", 3}}) {
    const auto team = json({"--processes", "8", "--memory.device", device})["team"];
    EXPECT_EQ(team["zero"], zero) << device;
    least = team["smallest_number_of_processes"];
  }
  // The fewest that hold everything are no power of two, and one less does not; beyond a node, nodes are whole.
  EXPECT_NE(least & (least - 1), 0) << least;
  const auto fits_on_devices = [&](int processes) {
    return plan({"--processes", std::to_string(processes), "--nodes", "1", "--memory.device", "30", "--memory.host",
                 "0.001"})
               .code == 0;
  };
  EXPECT_TRUE(fits_on_devices(least));
  EXPECT_FALSE(fits_on_devices(least - 1));
  const auto nodes = json({"--processes", "16", "--nodes", "4", "--memory.device", "30"})["team"];
  EXPECT_EQ(nodes["smallest_number_of_processes"], (least + 3) / 4 * 4);
  const CommandResult unlimited = plan({"--processes", "2", "--memory.device", "auto"});
  EXPECT_THAT(unlimited.out, HasSubstr("fewest processes"));

  const CommandResult uneven = plan({"--processes", "16", "--nodes", "3"});
  EXPECT_EQ(uneven.code, 2);
  EXPECT_THAT(uneven.err, HasSubstr("--nodes: 16 processes cannot be spread evenly over 3 nodes"));
  EXPECT_THAT(plan({"--processes", "16", "--link", "string"}).err, HasSubstr("--link: expected nvlink, pcie"));
  EXPECT_THAT(plan({"--link", "nvlink"}).err, HasSubstr("give their number as well: --processes N"));
  EXPECT_THAT(plan({"--nodes", "2"}).err, HasSubstr("--processes N"));
  EXPECT_THAT(plan({"--processes", "3", "--nodes", "2"}).err, HasSubstr("make --processes a multiple of --nodes"));
}

// Processes on the CPU share their host's memory: what one of them may take is a share of it, so that more of them on
// one host hold no more.
TEST(CliCommands, PlanForManyProcessesDividesAHostsMemory) {
  const TempFolder folder;
  folder.write("run.yaml", "base_model: " + model + "\noutput_dir: " + (folder / "o").string() +
                               "\ndatasets: [{path: nowhere.jsonl}]\nlearning_rate: 1e-4\ndevice: cpu\ndtype: fp32\n" +
                               "sequence_len: 16\nmicro_batch_size: 1\n");
  const auto plan = [&](int processes, int nodes, std::size_t bytes, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"plan",
                                      folder / "run.yaml",
                                      "--quiet",
                                      "--processes",
                                      std::to_string(processes),
                                      "--nodes",
                                      std::to_string(nodes),
                                      "--memory.device",
                                      fmt::format("{}", static_cast<double>(bytes) / 0x1p30)};
    words.insert(words.end(), more.begin(), more.end());
    return inlay(words);
  };
  const auto peak = [&](int processes) {
    return nlohmann::json::parse(
               plan(processes, processes, std::size_t{1} << 30, {"--json", "--parallel.zero", "3"}).out)
        .at("device_peak_bytes")
        .get<std::size_t>();
  };
  const auto smallest = [&](int processes, int nodes, std::size_t bytes) {
    return nlohmann::json::parse(plan(processes, nodes, bytes, {"--json"}).out)
        .at("team")
        .at("smallest_number_of_processes")
        .get<int>();
  };
  // Hosts of their own: three of them hold what two do not. On hosts that two share they are more.
  const std::size_t bytes = (peak(2) + peak(3)) / 2;
  const int apart = smallest(8, 8, bytes), shared = smallest(8, 4, bytes);
  EXPECT_GT(apart, 1);
  EXPECT_LE(apart, 3);
  if (shared > 0) {
    EXPECT_GT(shared, apart);
    EXPECT_EQ(plan(shared, shared / 2, bytes, {"--parallel.zero", "3"}).code, 0) << shared;
  }
  EXPECT_THAT(plan(4, 1, std::size_t{4} << 30, {}).out, HasSubstr("planned for 1.00 GiB of device memory for each"));
  EXPECT_THAT(plan(4, 4, std::size_t{4} << 30, {}).out, HasSubstr("planned for 4.00 GiB of device memory for each"));
}

TEST(CliCommands, PlanKeepsWhatItMeasuredOfTheMachine) {
  const TempFolder folder;
  folder.write("run.yaml", "base_model: " + model + "\noutput_dir: " + (folder / "o").string() +
                               "\ndatasets: [{path: nowhere.jsonl}]\nlearning_rate: 1e-4\ndevice: cpu\n");
  const auto source = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", folder / "run.yaml", "--json", "--quiet"});
    const CommandResult result = inlay(more);
    EXPECT_EQ(result.err, "");
    const auto json = nlohmann::json::parse(result.out);
    EXPECT_GT(json.at("tokens_per_second").get<double>(), 0);
    return json.at("ceilings_from").get<std::string>();
  };
  EXPECT_EQ(source({"--measure"}), "measured now");
  const std::string known = source({}), before = "measured before, ";
  ASSERT_TRUE(known.starts_with(before)) << known;
  std::ofstream(known.substr(before.size())) << "{";
  EXPECT_EQ(source({}), "measured now") << "the file was damaged";
  EXPECT_EQ(source({}), known);
}

// Not what the last layer happens to have.
TEST(CliCommands, InfoTellsWhatLayersHaveInTurn) {
  const auto info = [](const std::string& fixture) {
    const CommandResult result = inlay({"info", model_fixture(fixture), "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  };
  const nlohmann::json gemma2 = info("gemma2_softcaps"), gemma3 = info("gemma3_images");
  EXPECT_EQ(gemma2.at("window"), 5);
  EXPECT_EQ(gemma2.at("window_layers"), 2);
  EXPECT_EQ(gemma2.at("score_softcap"), 3.0);
  EXPECT_EQ(gemma2.at("logit_softcap"), 4.0);
  EXPECT_EQ(gemma3.at("family"), "gemma3_text");
  EXPECT_EQ(gemma3.at("window_layers"), 2);
  EXPECT_EQ(gemma3.at("local_rope").at("theta"), 10000.0);
  EXPECT_EQ(gemma3.at("local_rope_layers"), 2);
  EXPECT_EQ(info("granite_multipliers").at("residual_scale"), 0.43);
  EXPECT_EQ(info("smollm3_no_rope").at("layers_without_rope"), 2);
  EXPECT_EQ(info("llama_linear_sharded").at("window"), 0);
}

TEST(CliCommands, InitMakesAModelThatLoadsAndNeverOverwrites) {
  const TempFolder folder;
  ASSERT_EQ(inlay({"init", "--preset", "tiny", folder / "m"}).code, 0);
  const CommandResult info = inlay({"info", folder / "m", "--json"});
  ASSERT_EQ(info.code, 0) << info.err;
  EXPECT_EQ(nlohmann::json::parse(info.out).at("family"), "llama");
  const std::string before = read_text(folder / "m/model.safetensors");
  EXPECT_EQ(inlay({"init", folder / "m"}).code, 2);
  EXPECT_EQ(read_text(folder / "m/model.safetensors"), before);
  EXPECT_THAT(inlay({"init", "--preset", "huge", folder / "n"}).err, HasSubstr("tiny"));
  EXPECT_EQ(inlay({"generate", folder / "m", "--prompt", "hello", "--max-new-tokens", "3", "--device", "cpu"}).code, 0);
  EXPECT_EQ(inlay({"generate", folder / "m", "--ids", "1,2,999", "--device", "cpu"}).code, 2);
  // --bos is the token before the prompt, and nothing else.
  const auto ids = [&](const std::string& prompt, std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", folder / "m", "--device", "cpu", "--ids", prompt});
    return inlay(more).out;
  };
  EXPECT_EQ(ids("104,105", {"--bos"}), ids("256,104,105", {}));
}

TEST(CliCommands, GenerateSamplesBySeed) {
  const TempFolder folder;
  ASSERT_EQ(inlay({"init", "--preset", "tiny", folder / "m"}).code, 0);
  const auto generate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", folder / "m", "--ids", "1,2,3", "--device", "cpu"});
    return inlay(more);
  };
  const std::string greedy = generate({}).out, sampled = generate({"--temperature", "1", "--seed", "5"}).out;
  EXPECT_EQ(generate({"--temperature", "0"}).out, greedy);
  EXPECT_EQ(generate({"--temperature", "1", "--top-p", "1e-9"}).out, greedy);
  EXPECT_EQ(generate({"--temperature", "1", "--seed", "5"}).out, sampled);
  EXPECT_NE(generate({"--temperature", "1", "--seed", "6"}).out, sampled);
  EXPECT_NE(sampled, greedy);
  for (const char* option : {"--seed", "--top-p"}) {
    const CommandResult result = generate({option, "1"});
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr("--temperature"));
  }
  EXPECT_THAT(generate({"--temperature", "1", "--top-p", "0"}).err, HasSubstr("--top-p"));
  EXPECT_EQ(generate({"--temperature", "-1"}).code, 2);
}

TEST(CliCommands, EvalOnARealModelGivesTransformersLoss) {
  const auto data = test_data();
  if (!data) GTEST_SKIP() << "the shared test data is not available";
  const fs::path stories = *data / "models/stories15M";
  const fs::path expected = source_folder() / "tests/golden/stories15M";
  const CommandResult result =
      inlay({"eval", stories.string(), "--data", (expected / "data.jsonl").string(), "--device", "cpu", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const double loss = nlohmann::json::parse(read_text(expected / "expected.json")).at("loss");
  EXPECT_NEAR(nlohmann::json::parse(result.out).at("loss").get<double>(), loss, 1e-5 * loss);
}

TEST(CliCommands, BenchPrintsOneObject) {
  const CommandResult result = inlay(
      {"bench", "matmul", "--m", "64", "--n", "64", "--k", "64", "--iterations", "1", "--device", "cpu", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  for (const char* key : {"ms", "peak_extra_bytes", "floor_ms"}) EXPECT_TRUE(json.contains(key)) << key;
}

TEST(CliCommands, TemplateRendersAConversation) {
  const TempFolder folder;
  folder.write("t.jinja",
               "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
               "{% if add_generation_prompt %}<assistant>{% endif %}{{ tools|tojson }}{{ x }}{{ y }}");
  folder.write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  folder.write("m.json", R"([{"role": "user", "content": "Grüße"}])");
  folder.write("tools.json", R"([{"name": "f", "a": 1}])");
  EXPECT_EQ(inlay({"template", folder / "t.jinja", folder / "m.json"}).out, "<s><user>Grüßenull");
  EXPECT_EQ(inlay({"template", folder / "t.jinja", folder / "m.json", "--add-generation-prompt", "--tools",
                   folder / "tools.json", "--set", "x=[1, 2.0]", "--set", "y=a b=c"})
                .out,
            "<s><user>Grüße<assistant>[{\"name\": \"f\", \"a\": 1}][1, 2.0]a b=c");
  folder.write("row.json", R"({"id": 7, "tools": [], "messages": [{"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(inlay({"template", folder / "t.jinja", folder / "row.json"}).out, "<s><user>Hi[]");

  const auto fails = [&](const std::vector<std::string>& arguments, const std::string& message) {
    const CommandResult result = inlay(arguments);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr(message));
  };
  fails({"template", folder.path(), folder / "m.json"}, "no chat template");
  fails({"template", folder / "t.jinja", folder / "none.json"}, "none.json");
  folder.write("bad.json", "[{]");
  fails({"template", folder / "t.jinja", folder / "bad.json"}, "bad.json: not valid JSON");
  folder.write("bad.json", "{\"chat\": []}");
  fails({"template", folder / "t.jinja", folder / "bad.json"}, "bad.json: expected an array of messages");
  fails({"template", folder / "t.jinja", folder / "m.json", "--set", "x"}, "--set: expected key=value");
  folder.write("e.jinja", "a\n{{ messages[5].role }}");
  fails({"template", folder / "e.jinja", folder / "m.json"}, "e.jinja:2:16: list object has no element 5");
}

}  // namespace
}  // namespace inlay::testing
