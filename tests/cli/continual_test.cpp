#include <gmock/gmock.h>
#include <algorithm>

#include <gtest/gtest.h>
#include <chrono>

#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/device_tensors.h"

// `inlay continual` as a user meets it: two small tasks, two methods, interruptions.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

// "PREFIXwordTARGET": documents of bytes, of which the target is learned.
std::string rows_of_documents(const std::string& prefix, int count, bool reverse) {
  std::string lines;
  for (int n = 0; n < count; ++n) {
    std::string word;
    for (int i = 0; i < 4; ++i) word += static_cast<char>('a' + (7 * n + 5 * i * i + n * i) % 26);
    const std::string target = reverse ? std::string(word.rbegin(), word.rend()) : word + word;
    nlohmann::json ids = nlohmann::json::array(), labels = nlohmann::json::array();
    for (const char c : prefix + word) ids.push_back(c), labels.push_back(-100);
    for (const char c : target) ids.push_back(c), labels.push_back(c);
    lines += nlohmann::json({{"input_ids", ids}, {"labels", labels}}).dump() + "\n";
  }
  return lines;
}

class CliContinual : public ::testing::TestWithParam<Device> {
 protected:
  CliContinual() {
    folder.write("reverse.jsonl", rows_of_documents("r ", 64, true));
    folder.write("double.jsonl", rows_of_documents("d ", 64, false));
    folder.write("held.jsonl", rows_of_documents("h ", 16, true));
    folder.write("choices.jsonl",
                 "{\"input_ids\": [100, 32, 97], \"choices\": [[97, 97], [98]], \"answer\": 0}\n"
                 "{\"input_ids\": [100, 32, 98], \"choices\": [[97], [98, 98]], \"answer\": 1}\n");
    EXPECT_EQ(inlay({"init", "--preset", "tiny", folder / "base"}).code, 0);
  }

  std::string path(const std::string& name) const { return (folder / name).string(); }

  std::string config(const std::string& output, const std::string& more = "", int steps = 6) const {
    return "base_model: " + path("base") + "\noutput_dir: " + path(output) +
           "\ntasks:\n"
           "  - {name: reverse, train: " +
           path("reverse.jsonl") + ", eval: " + path("reverse.jsonl") + "}\n" +
           "  - {name: double, train: " + path("double.jsonl") + ", eval: " + path("choices.jsonl") +
           ", metric: choice_accuracy}\n"
           "held: [{name: old, data: " +
           path("held.jsonl") + "}]\n" +
           "methods:\n"
           "  - {name: sft, learning_rates: [1.0e-4, 1.0e-3]}\n"
           "  - {name: decay, learning_rates: [1.0e-3], training: {weight_decay: 0.5}}\n"
           "training: {sequence_len: 32, micro_batch_size: 4, deterministic: true, dtype: fp32, save_steps: 2, "
           "max_steps: " +
           std::to_string(steps) + ", device: " + std::string(name_of(GetParam())) + "}\n" + more;
  }

  CommandResult run(const std::string& yaml, std::vector<std::string> arguments = {}, CommandLimits limits = {}) {
    folder.write("study.yaml", yaml);
    arguments.insert(arguments.begin(), {"continual", folder / "study.yaml"});
    return inlay(arguments, limits);
  }

  TempFolder folder;
};

TEST_P(CliContinual, RunsAllSequencesAndReports) {
  const CommandResult result = run(config("study"), {"--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, read_text(folder / "study/results.json"));
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("sequences_complete"), 3);
  EXPECT_EQ(json.at("baseline"), "sft");
  // A row is what `inlay eval` says of the model in its folder.
  const fs::path last = folder / "study/sft/1e-3/seed-42/2-double";
  const auto row = nlohmann::json::parse(read_text(last / "evaluation.json"));
  const auto eval = [&](const std::string& data) {
    const CommandResult out =
        inlay({"eval", last.string(), "--data", path(data), "--json", "--device", std::string(name_of(GetParam()))});
    EXPECT_EQ(out.code, 0) << out.err;
    return nlohmann::json::parse(out.out);
  };
  EXPECT_NEAR(row.at("held").at("old").at("loss").get<double>(), eval("held.jsonl").at("loss").get<double>(), 1e-5);
  const auto choices = eval("choices.jsonl");
  EXPECT_EQ(row.at("tasks").at("double").at("choice_accuracy"), choices.at("choice_accuracy"));
  EXPECT_NEAR(row.at("tasks").at("double").at("loss").get<double>(), choices.at("loss").get<double>(), 1e-5);
  EXPECT_EQ(choices.at("questions"), 2);
  // It did learn, and started from the task before: its own loss fell below the base model's.
  EXPECT_LT(row.at("tasks").at("double").at("loss").get<double>(),
            json.at("base").at("tasks").at("double").at("loss").get<double>());
  EXPECT_EQ(json.at("sequences").at(1).at("rows").at(1), row);
  // Only the last task's weights are kept.
  EXPECT_TRUE(fs::exists(last / "model.safetensors"));
  EXPECT_FALSE(fs::exists(last.parent_path() / "1-reverse/model.safetensors"));
  EXPECT_FALSE(fs::exists(last / "checkpoint-6"));
  EXPECT_THAT(read_text(folder / "study/report.html"), HasSubstr("<svg"));

  const CommandResult table = run(config("study"), {"--report-only"});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("report.html"));
  EXPECT_THAT(table.out, HasSubstr("decay"));
}

// One after the other, each as if it were alone; what is wrong with the second is said before the first trains.
TEST_P(CliContinual, SeveralStudiesOfAFile) {
  const auto yaml = [&](const std::string& second) {
    return "base_model: " + path("base") + "\noutput_dir: " + path("all") +
           "\nmethods: [{name: sft, learning_rates: [1.0e-3]}]\n"
           "training: {sequence_len: 32, micro_batch_size: 4, deterministic: true, dtype: fp32, max_steps: 2, "
           "device: " +
           std::string(name_of(GetParam())) +
           "}\n"
           "studies:\n"
           "  - {name: first, tasks: [{name: reverse, train: " +
           path("reverse.jsonl") + ", eval: " + path("held.jsonl") +
           "}]}\n"
           "  - {name: second, tasks: [{name: double, train: " +
           path(second) + ", eval: " + path("held.jsonl") + "}]}\n";
  };
  const CommandResult wrong = run(yaml("nowhere.jsonl"));
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("nowhere.jsonl"));
  EXPECT_FALSE(fs::exists(folder / "all/first/sft")) << "nothing has trained";
  fs::remove_all(folder / "all");

  const CommandResult one = run(yaml("double.jsonl"), {"--study", "second", "--jobs", "2", "--json"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_FALSE(fs::exists(folder / "all/first"));
  const std::string second = read_text(folder / "all/second/results.json");
  EXPECT_EQ(nlohmann::json::parse(one.out), nlohmann::json({{"second", nlohmann::json::parse(second)}}));

  // What was never begun begins, what is complete stays.
  const CommandResult both = run(yaml("double.jsonl"), {"--resume", "--json"});
  ASSERT_EQ(both.code, 0) << both.err;
  const auto results = nlohmann::json::parse(both.out);
  EXPECT_EQ(results.at("second"), nlohmann::json::parse(second));
  EXPECT_EQ(results.at("first"), nlohmann::json::parse(read_text(folder / "all/first/results.json")));
  EXPECT_EQ(results.at("first").at("sequences_complete"), 1);

  const CommandResult table = run(yaml("double.jsonl"), {"--report-only"});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("study first"));
  EXPECT_THAT(table.out, HasSubstr("all/second/report.html"));
  const CommandResult unknown = run(yaml("double.jsonl"), {"--study", "third"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("holds first, second, not 'third'"));
}

TEST_P(CliContinual, InterruptedAnywhereItComesToTheSameResults) {
  const auto yaml = [&](const std::string& output) {
    std::string text = config(output, "", 25);
    text.replace(text.find("[1.0e-4, 1.0e-3]"), 16, "[1.0e-3]");
    return text.replace(text.find("save_steps: 2"), 13, "save_steps: 0");  // only an interrupt writes a checkpoint
  };
  const auto began = std::chrono::steady_clock::now();
  ASSERT_EQ(run(yaml("whole")).code, 0);
  const auto whole = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began);
  int interruptions = 0, code = 130;
  // What the first run has cached makes the second one much quicker, and so does a machine that was busy and is no
  // more.
  for (int wait = static_cast<int>(std::clamp<std::int64_t>(whole.count() / 10, 1, 200));
       code == 130 && interruptions < 25; wait += wait / 3) {
    std::vector<std::string> arguments;
    if (fs::exists(folder / "study/study.json")) arguments.emplace_back("--resume");
    const CommandResult part = run(yaml("study"), arguments, {.interrupt_after_ms = wait});
    code = part.code;
    ASSERT_TRUE(code == 0 || code == 130) << part.err;
    interruptions += code == 130 ? 1 : 0;
  }
  ASSERT_EQ(code, 0);
  EXPECT_GT(interruptions, 0);
  EXPECT_EQ(read_text(folder / "study/results.json"), read_text(folder / "whole/results.json"));
  EXPECT_EQ(read_text(folder / "study/decay/1e-3/seed-42/2-double/model.safetensors"),
            read_text(folder / "whole/decay/1e-3/seed-42/2-double/model.safetensors"));
}

TEST_P(CliContinual, ResumeDoesOnlyWhatIsMissing) {
  const std::string keep = "keep_models: all\n";
  ASSERT_EQ(run(config("study", keep)).code, 0);
  const std::string results = read_text(folder / "study/results.json");
  // As an interrupt leaves it: one task in the middle of its steps, one trained but not evaluated.
  const fs::path half = folder / "study/sft/1e-4/seed-42/2-double", unread = folder / "study/sft/1e-3/seed-42/2-double";
  for (const char* name : {"evaluation.json", "summary.json", "model.safetensors", "checkpoint-6", "checkpoint-4"})
    fs::remove_all(half / name);
  fs::remove(unread / "evaluation.json");
  const auto untouched = fs::last_write_time(folder / "study/decay/1e-3/seed-42/2-double/summary.json");
  const auto trained = fs::last_write_time(unread / "summary.json");
  const CommandResult resumed = run(config("study", keep), {"--resume"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("[2/2]"));
  EXPECT_EQ(read_text(folder / "study/results.json"), results);
  EXPECT_EQ(fs::last_write_time(folder / "study/decay/1e-3/seed-42/2-double/summary.json"), untouched);
  EXPECT_EQ(fs::last_write_time(unread / "summary.json"), trained);
}

// Each task's adapter is merged into the model that the next one begins with, and that is evaluated.
TEST_P(CliContinual, AdaptersAreMergedAfterEveryTask) {
  const auto yaml = [&](const std::string& output, const std::string& more = "") {
    std::string text = config(output, "keep_models: all\n");
    const std::string method = "{name: sft, learning_rates: [1.0e-4, 1.0e-3]}";
    return text.replace(text.find(method), method.size(),
                        "{name: sft, learning_rates: [1.0e-2], training: {adapter: lora, lora_r: 4, lora_alpha: 8, "
                        "lora_target_linear: true" +
                            more + "}}");
  };
  const CommandResult result = run(yaml("study"));
  ASSERT_EQ(result.code, 0) << result.err;
  const fs::path first = folder / "study/sft/1e-2/seed-42/1-reverse",
                 second = folder / "study/sft/1e-2/seed-42/2-double";
  const auto loss = [&](const std::vector<std::string>& model) {
    std::vector<std::string> arguments = {
        "eval", "--data", path("held.jsonl"), "--device", std::string(name_of(GetParam())), "--json", "--quiet"};
    arguments.insert(arguments.begin() + 1, model.begin(), model.end());
    const CommandResult out = inlay(arguments);
    EXPECT_EQ(out.code, 0) << out.err;
    return nlohmann::json::parse(out.out).at("loss").get<double>();
  };
  const auto row = nlohmann::json::parse(read_text(second / "evaluation.json"));
  const double held = row.at("held").at("old").at("loss");
  EXPECT_NEAR(loss({second / "merged"}), held, 1e-5);
  EXPECT_NEAR(loss({first / "merged", "--adapter", second}), held, 1e-5);
  EXPECT_GT(std::abs(loss({path("base")}) - held), 0.01);
  // Trained, but not merged, and so not evaluated: only that is made up for.
  const std::string results = read_text(folder / "study/results.json");
  const auto trained = fs::last_write_time(second / "summary.json");
  fs::remove_all(second / "merged");
  fs::remove(second / "evaluation.json");
  ASSERT_EQ(run(yaml("study"), {"--resume"}).code, 0);
  EXPECT_EQ(read_text(folder / "study/results.json"), results);
  EXPECT_EQ(fs::last_write_time(second / "summary.json"), trained);

  EXPECT_THAT(run(yaml("other", ", lora_model_dir: " + first.string())).err,
              HasSubstr("training.lora_model_dir cannot be set: every task begins a new adapter"));
}

// Averaging and pruning take the models of another method; added later, only what they need is trained again.
TEST_P(CliContinual, WhatIsDoneAfterTrainingTrainsNothing) {
  const auto yaml = [&](const std::string& output, const std::string& keep) {
    std::string text = config(output, "keep_models: " + keep + "\n");
    const std::string decay = "  - {name: decay, learning_rates: [1.0e-3], training: {weight_decay: 0.5}}\n";
    return text.replace(text.find(decay), decay.size(),
                        "  - {name: average, after: sft, average: [0.25, 0.5], learning_rates: [1.0e-3]}\n"
                        "  - {name: prune, after: sft, keep: [0.1]}\n");
  };
  const CommandResult result = run(yaml("study", "all"), {"--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("[12/12]"));
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("sequences_complete"), 6);
  EXPECT_EQ(json.at("methods").at(1).at("learning_rates").at(0).at("share"), 0.25);
  const fs::path half = folder / "study/average/1e-3/0.5/seed-42/2-double";
  const auto numbers = [&](const fs::path& model) { return read_text(model / "model.safetensors"); };
  EXPECT_NE(numbers(half), numbers(folder / "study/average/1e-3/0.25/seed-42/2-double"));
  EXPECT_NE(numbers(half), numbers(folder / "study/sft/1e-3/seed-42/2-double"));
  // Its row is what the model in its folder scores.
  const CommandResult eval = inlay({"eval", half.string(), "--data", path("held.jsonl"), "--json", "--device",
                                    std::string(name_of(GetParam())), "--dtype", "fp32"});
  EXPECT_NEAR(nlohmann::json::parse(read_text(half / "evaluation.json")).at("held").at("old").at("loss").get<double>(),
              nlohmann::json::parse(eval.out).at("loss").get<double>(), 1e-5);
  // Less of what was learned: between the base model and the whole of it.
  const auto old = [&](std::size_t sequence) {
    return json.at("sequences").at(sequence).at("rows").at(0).at("tasks").at("reverse").at("loss").get<double>();
  };
  const double base = json.at("base").at("tasks").at("reverse").at("loss");
  EXPECT_GT(base, old(2));
  EXPECT_GT(old(2), old(3));
  EXPECT_GT(old(3), old(1));

  // The same in two goes, of which the first has kept no weights.
  std::string before = yaml("goes", "none");
  before.erase(before.find("  - {name: average"), before.find("training:") - before.find("  - {name: average"));
  ASSERT_EQ(run(before).code, 0);
  const CommandResult added = run(yaml("goes", "none"), {"--resume"});
  ASSERT_EQ(added.code, 0) << added.err;
  EXPECT_EQ(read_text(folder / "goes/results.json"), read_text(folder / "study/results.json"));
  for (const auto& entry : fs::recursive_directory_iterator(folder / "goes")) {
    EXPECT_NE(entry.path().extension(), ".safetensors") << entry.path();
  }
}

// Prompts that the base model answers are held by what it says, and a right answer is one that says the same.
TEST_P(CliContinual, AnswersAreHeldAndMatched) {
  folder.write("prompts.jsonl",
               "{\"instruction\": \"Say one.\", \"output\": \"one\"}\n"
               "{\"instruction\": \"Say two.\", \"output\": \"two\"}\n"
               "{\"instruction\": \"Say three.\", \"output\": \"three\"}\n");
  const auto yaml = [&](const std::string& output, const std::string& more) {
    std::string text = config(output, "", 1);
    const std::string held = "{name: old, data: " + path("held.jsonl") + "}";
    text.replace(text.find("sequence_len: 32"), 16, "sequence_len: 512");
    return text.replace(text.find(held), held.size(),
                        "{name: own, prompts: " + path("prompts.jsonl") +
                            ", limit: 2, max_new_tokens: 8, temperature: 0, metric: exact_match}, {name: said, data: " +
                            path("prompts.jsonl") + ", metric: exact_match, max_new_tokens: 8" + more + "}");
  };
  const CommandResult result = run(yaml("study", ""), {"--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto base = nlohmann::json::parse(result.out).at("base").at("held");
  EXPECT_EQ(base.at("own").at("exact_match"), 1.0) << "it says what it said";
  EXPECT_EQ(base.at("said").at("exact_match"), 0.0) << "random weights know nothing";
  const std::string answers = read_text(folder / "study/base-answers-own.jsonl");
  EXPECT_EQ(std::ranges::count(answers, '\n'), 2);
  const CommandResult eval = inlay({"eval", path("base"), "--data", (folder / "study/base-answers-own.jsonl").string(),
                                    "--json", "--device", std::string(name_of(GetParam())), "--dtype", "fp32"});
  EXPECT_NEAR(base.at("own").at("loss").get<double>(), nlohmann::json::parse(eval.out).at("loss").get<double>(), 1e-5);
  EXPECT_EQ(nlohmann::json::parse(eval.out).at("accuracy"), 1.0) << "each token was the likeliest";

  std::string inputs = yaml("inputs", "");
  inputs.replace(inputs.find("sequence_len: 512"), 17, "sequence_len: 512, train_on_inputs: true");
  EXPECT_THAT(run(inputs).err, HasSubstr("held own: a model cannot be asked with train_on_inputs"));
  EXPECT_THAT(run(yaml("study", ", marker: one"), {"--resume"}).err,
              HasSubstr("row 2: its answer has no 'one', which answers are judged by: 'two'"));
  EXPECT_THAT(run(yaml("study", ", match: contains"), {"--resume"}).err,
              HasSubstr("match was 'whole' and is 'contains' now"));
  std::string other = yaml("study", "");
  other.erase(other.find(", metric: exact_match}, {name: said"), 21);
  EXPECT_THAT(run(other, {"--resume"}).err, HasSubstr("held[0].metric was 'exact_match' and is not given now"));
}

// The last token of an answer is the one that the model ended it by, whichever of those that may end it.
TEST_P(CliContinual, OwnAnswersEndAsTheModelEndsThem) {
  folder.write("prompts.jsonl", "{\"instruction\": \"Say one.\", \"output\": \"one\"}\n");
  const auto answer = [&](const std::string& output) {
    std::string text = config(output, "", 1);
    const std::string held = "{name: old, data: " + path("held.jsonl") + "}";
    text.replace(text.find("sequence_len: 32"), 16, "sequence_len: 512");
    text.replace(text.find(held), held.size(),
                 "{name: own, prompts: " + path("prompts.jsonl") + ", max_new_tokens: 8, temperature: 0}");
    const CommandResult result = run(text);
    EXPECT_EQ(result.code, 0) << result.err;
    const auto row = nlohmann::json::parse(read_text(folder / output / "base-answers-own.jsonl"));
    return row.at("input_ids").get<std::vector<std::int32_t>>();
  };
  const std::vector<std::int32_t> whole = answer("whole");
  folder.write("base/generation_config.json", "{\"eos_token_id\": " + std::to_string(whole.back()) + "}");
  const std::vector<std::int32_t> ended = answer("ended");
  EXPECT_EQ(ended.back(), whole.back());
  ASSERT_LE(ended.size(), whole.size());
  EXPECT_TRUE(std::equal(ended.begin(), ended.end(), whole.begin()));
}

// Several at once come to what one by one come to.
TEST_P(CliContinual, SequencesMayRunSideBySide) {
  ASSERT_EQ(run(config("one")).code, 0);
  const CommandResult result = run(config("several"), {"--jobs", "3"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("[6/6]"));
  EXPECT_THAT(result.out, HasSubstr("decay"));
  EXPECT_EQ(read_text(folder / "several/results.json"), read_text(folder / "one/results.json"));

  const CommandResult wrong = run(config("several"), {"--jobs", "0"});
  EXPECT_EQ(wrong.code, 2);
  std::string broken = config("broken");
  broken.replace(broken.find("weight_decay: 0.5"), 17, "osft: {unfreeze_rank_ratio: 0.5, targets: [nothing]}");
  EXPECT_EQ(run(broken, {"--jobs", "2"}).code, 2);
}

TEST_P(CliContinual, AnInterruptReachesAllThatRunSideBySide) {
  const auto yaml = [&](const std::string& output) { return config(output, "", 400); };
  const CommandResult stopped =
      run(yaml("study"), {"--jobs", "2"},
          {.interrupt_when = [&] { return fs::exists(folder / "study/sft/1e-4/seed-42/1-reverse/metrics.jsonl"); }});
  ASSERT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("--resume"));
  EXPECT_FALSE(fs::exists(folder / "study/sft/1e-4/seed-42/1-reverse/model.safetensors"));
}

TEST_P(CliContinual, ASequenceWhoseWeightsAreGoneStartsOver) {
  ASSERT_EQ(run(config("study", "keep_models: none\n")).code, 0);
  const std::string results = read_text(folder / "study/results.json");
  EXPECT_FALSE(fs::exists(folder / "study/decay/1e-3/seed-42/2-double/model.safetensors"));
  fs::remove_all(folder / "study/decay/1e-3/seed-42/2-double");
  const CommandResult resumed = run(config("study", "keep_models: none\n"), {"--resume"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(read_text(folder / "study/results.json"), results);
}

TEST_P(CliContinual, AnotherMeaningIsRefusedAndMoreOfTheSameIsNot) {
  const std::string yaml = config("study", "", 2);
  ASSERT_EQ(run(yaml).code, 0);
  const CommandResult again = run(yaml);
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("already holds a study; add --resume"));

  const CommandResult longer = run(config("study", "", 3), {"--resume"});
  EXPECT_EQ(longer.code, 2);
  EXPECT_THAT(longer.err, HasSubstr("max_steps was '2' and is '3' now"));
  EXPECT_EQ(run(config("study", "", 3), {"--report-only"}).code, 2);
  std::string fewer = yaml;
  fewer.erase(fewer.find("held:"), fewer.find("methods:") - fewer.find("held:"));
  EXPECT_THAT(run(fewer, {"--resume"}).err, HasSubstr("was '" + path("held.jsonl") + "' and is not given now"));
  const std::string held = read_text(folder / "held.jsonl");
  folder.write("held.jsonl", held + held);
  EXPECT_THAT(run(yaml, {"--resume"}).err, HasSubstr("held.jsonl has changed"));
  folder.write("held.jsonl", held);
  fs::rename(folder / "base", folder / "before");
  ASSERT_EQ(inlay({"init", "--preset", "tiny", "--seed", "1", folder / "base"}).code, 0);
  EXPECT_THAT(run(yaml, {"--resume"}).err, HasSubstr("the weights in " + path("base") + " has changed"));
  fs::remove_all(folder / "base");
  fs::rename(folder / "before", folder / "base");

  std::string more = yaml;
  more.replace(more.find("[1.0e-4, 1.0e-3]"), 16, "[1.0e-3, 3.0e-3]");
  more.replace(more.find("save_steps: 2"), 13, "save_steps: 0");
  const CommandResult added = run(more + "seeds: [42, 7]\n", {"--resume", "--json"});
  ASSERT_EQ(added.code, 0) << added.err;
  EXPECT_EQ(nlohmann::json::parse(added.out).at("sequences_complete"), 6);
  EXPECT_THAT(added.err, HasSubstr("[8/8]")) << "two sequences were there, four are new";
}

TEST_P(CliContinual, ADivergedRunIsNotedAndTheRestGoesOn) {
  std::string yaml = config("study", "", 2);
  yaml.replace(yaml.find("[1.0e-4, 1.0e-3]"), 16, "[1.0e-3, 1.0e38]");
  const CommandResult result = run(yaml, {"--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("sequences_complete"), 2);
  EXPECT_EQ(json.at("sequences_diverged"), 1);
  EXPECT_THAT(json.at("sequences").at(1).at("diverged").get<std::string>(), HasSubstr("task reverse: step 2"));
  EXPECT_EQ(run(yaml, {"--resume", "--quiet"}).err, "") << "it is not tried again";
}

// The loss of the only step was that of the base model; what came of it shows in the weights or the evaluation.
TEST_P(CliContinual, ARunThatBreaksInItsLastStepHasDivergedToo) {
  std::string yaml = config("study", "", 1);
  yaml.replace(yaml.find("[1.0e-4, 1.0e-3]"), 16, "[1.0e-3, 1.0e25]");
  const CommandResult result = run(yaml, {"--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("sequences_complete"), 2);
  EXPECT_EQ(json.at("sequences_diverged"), 1);
  EXPECT_EQ(run(yaml, {"--resume", "--quiet"}).code, 0);
}

TEST_P(CliContinual, MistakesAreFoundBeforeAnythingIsTrained) {
  EXPECT_THAT(run(config("study"), {"--resume"}).err, HasSubstr("finds no study there"));
  EXPECT_THAT(run(config("study"), {"--report-only"}).err, HasSubstr("holds no study yet"));
  std::string yaml = config("study");
  yaml.replace(yaml.find(", metric: choice_accuracy"), 25, "");
  EXPECT_THAT(run(yaml).err, HasSubstr("choices.jsonl: has choices, but the metric of task double is loss"));
  yaml = config("study");
  yaml.replace(yaml.find("choices.jsonl"), 13, "double.jsonl");
  EXPECT_THAT(run(yaml).err, HasSubstr("double.jsonl: has no choices"));
  yaml = config("study");
  yaml.replace(yaml.find("held.jsonl}"), 11, "held.jsonl, metric: choice_accuracy}");
  EXPECT_THAT(run(yaml).err, HasSubstr("held.jsonl: has no choices, which the metric of held old"));
  yaml = config("study");
  yaml.replace(yaml.rfind("double.jsonl"), 12, "nowhere.jsonl");
  EXPECT_THAT(run(yaml).err, HasSubstr("nowhere.jsonl: no such file"));
  EXPECT_THAT(run(config("study", "colour: red\n")).err, HasSubstr("colour is not a known key"));
  // Of a method whose turn would come late, too.
  const auto with_method = [&](const std::string& training) {
    yaml = config("study");
    yaml.insert(yaml.find("training: {sequence_len"),
                "  - {name: late, learning_rates: [1.0e-3], training: {" + training + "}}\n");
    return run(yaml).err;
  };
  EXPECT_THAT(with_method("rl: dpo"), HasSubstr("method late, task reverse: "));
  EXPECT_THAT(with_method("rl: dpo"), HasSubstr("reverse.jsonl: rl: dpo learns from rows with prompt, chosen"));
  EXPECT_THAT(with_method("sdft: {enabled: true}"), HasSubstr("has tokens, but sdft needs rows of texts"));
  EXPECT_THAT(with_method("kd_trainer: true"), HasSubstr("method late, task reverse: "));
  EXPECT_THAT(with_method("kd_trainer: true, kd_teacher: nowhere"), HasSubstr("no such model folder"));
  EXPECT_FALSE(fs::exists(folder / "study"));
}

INSTANTIATE_TEST_SUITE_P(, CliContinual, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
