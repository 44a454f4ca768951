#include "study/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "support/files.h"

namespace inlay::study {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string tasks =
    "tasks:\n"
    "  - {name: gsm8k, train: a.jsonl, eval: b.jsonl}\n"
    "  - {name: trace, train: [c.jsonl, d.jsonl], eval: e.jsonl, metric: choice_accuracy, training: {max_steps: 7}}\n";
const std::string head = "base_model: m\noutput_dir: o\n";
const std::string methods = "methods: [{name: sft, learning_rates: [1.0e-4]}]\n";

ContinualOptions parse(const std::string& yaml) { return parse_studies(yaml, "c.yaml").front(); }
std::string error_of(const std::string& yaml) {
  return inlay::testing::user_error_of([&] { parse(yaml); });
}

TEST(StudyOptions, ReadsAllOfIt) {
  const auto o = parse(head + tasks +
                       "held: [{name: stories, data: h.jsonl}, {name: facts, data: f.jsonl, metric: token_accuracy}]\n"
                       "methods:\n"
                       "  - {name: plain, learning_rates: [3.0e-5, 1.0e-4]}\n"
                       "  - {name: decay, learning_rates: [1], training: {weight_decay: 0.1, max_steps: 5}}\n"
                       "seeds: [1, 2]\ntraining: {sequence_len: 256, max_steps: 300}\nkeep_models: none\n");
  EXPECT_EQ(o.tasks[0].metric, Metric::loss);
  EXPECT_EQ(o.tasks[1].metric, Metric::choice_accuracy);
  EXPECT_THAT(o.tasks[1].train, ElementsAre("c.jsonl", "d.jsonl"));
  EXPECT_EQ(o.held[0].name, "stories");
  EXPECT_EQ(o.held[0].metric, Metric::loss);
  EXPECT_EQ(o.held[1].metric, Metric::token_accuracy);
  EXPECT_THAT(o.seeds, ElementsAre(1, 2));
  EXPECT_EQ(o.keep_models, KeepModels::none);
  EXPECT_EQ(o.baseline, "plain");
  EXPECT_EQ(o.evaluation.sequence_len, 256);
  // Study, then method, then task: the narrower wins.
  EXPECT_EQ(o.methods[0].training[0].max_steps, 300);
  EXPECT_EQ(o.methods[0].training[1].max_steps, 7);
  EXPECT_EQ(o.methods[1].training[0].max_steps, 5);
  EXPECT_EQ(o.methods[1].training[1].max_steps, 7);
  EXPECT_EQ(o.methods[0].training[1].weight_decay, 0);
  EXPECT_EQ(o.methods[1].training[1].weight_decay, 0.1);
  EXPECT_EQ(o.methods[1].training[1].sequence_len, 256);
  EXPECT_THAT(o.methods[1].training[1].datasets,
              ElementsAre(data::DatasetOptions{.path = "c.jsonl"}, data::DatasetOptions{.path = "d.jsonl"}));
}

// A budget that grows: less is free from task to task. Plain fine-tuning stays what it is.
TEST(StudyOptions, ATasksOsftKeysAreForMethodsThatUseIt) {
  const auto o = parse(head +
                       "tasks: [{name: a, train: a.jsonl, eval: a.jsonl}, {name: b, train: b.jsonl, eval: b.jsonl, "
                       "training: {max_steps: 7, osft: {unfreeze_rank_ratio: 0.25}}}]\n"
                       "methods: [{name: sft, learning_rates: [1]}, {name: ours, learning_rates: [1], training: {osft: "
                       "{unfreeze_rank_ratio: 0.5}}}]\n");
  EXPECT_FALSE(o.methods[0].training[1].osft.enabled);
  EXPECT_EQ(o.methods[0].training[1].max_steps, 7);
  EXPECT_EQ(o.methods[1].training[0].osft.unfreeze_rank_ratio, 0.5);
  EXPECT_EQ(o.methods[1].training[1].osft.unfreeze_rank_ratio, 0.25);
}

// A method adds to the study's map and does not replace it.
TEST(StudyOptions, NestedKeysMerge) {
  const auto o = parse(head + tasks +
                       "methods: [{name: a, learning_rates: [1], training: {osft: {basis: weights}}}]\n"
                       "training: {osft: {unfreeze_rank_ratio: 0.25, calibration: {samples: 3}}}\n");
  const osft::OsftOptions& osft = o.methods[0].training[0].osft;
  EXPECT_TRUE(osft.enabled);
  EXPECT_EQ(osft.basis, osft::BasisKind::weights);
  EXPECT_EQ(osft.unfreeze_rank_ratio, 0.25);
  EXPECT_EQ(osft.calibration.samples, 3);
}

TEST(StudyOptions, EarlierIsTheTrainingDataOfTheTasksBefore) {
  const auto with = [](const std::string& data) {
    return head + tasks +
           "methods: [{name: o, learning_rates: [1], training: {osft: {unfreeze_rank_ratio: 0.5, calibration: {data: " +
           data + "}}}}]\n";
  };
  const auto o = parse(with("[earlier, sample]"));
  EXPECT_THAT(o.methods[0].training[0].osft.calibration.data, ElementsAre("sample"));
  EXPECT_THAT(o.methods[0].training[1].osft.calibration.data, ElementsAre("sample", o.tasks[0].train[0]));
  EXPECT_THAT(parse(with("[" + o.tasks[0].train[0] + ", earlier]")).methods[0].training[1].osft.calibration.data,
              ElementsAre(o.tasks[0].train[0]))
      << "once is enough";
  EXPECT_THAT(error_of(with("earlier")),
              HasSubstr("c.yaml: method o: osft.calibration.data: nothing is earlier than the first task"));
}

TEST(StudyOptions, TheBaselineIsSftWhereThereIsOne) {
  const std::string two = "methods: [{name: x, learning_rates: [1]}, {name: sft, learning_rates: [1]}]\n";
  EXPECT_EQ(parse(head + tasks + two).baseline, "sft");
  EXPECT_EQ(parse(head + tasks + two + "baseline: x\n").baseline, "x");
  EXPECT_THAT(error_of(head + tasks + two + "baseline: y\n"),
              HasSubstr("c.yaml, line 7: baseline: expected the name of a method, got 'y'"));
}

TEST(StudyOptions, MistakesNameFileLineAndKey) {
  EXPECT_THAT(error_of(head + methods), HasSubstr("c.yaml, line 1: tasks is required"));
  EXPECT_THAT(error_of(tasks + methods), HasSubstr("base_model is required"));
  EXPECT_THAT(error_of(head + tasks), HasSubstr("methods is required"));
  EXPECT_THAT(error_of(head + tasks + methods + "sedes: [1]\n"),
              HasSubstr("c.yaml, line 7: sedes is not a known key; did you mean seeds?"));
  EXPECT_THAT(error_of(head + tasks + methods + "seeds: [1, -1]\n"),
              HasSubstr("line 7: seeds: expected a list of integers of at least 0, got '-1'"));
  EXPECT_THAT(error_of(head + tasks + methods + "seeds: 3\n"), HasSubstr("expected a list"));
  EXPECT_THAT(error_of(head + tasks + methods + "seeds: [1, 1]\n"), HasSubstr("seeds: 1 is given twice"));
  EXPECT_THAT(error_of(head + tasks + methods + "seeds: [1]\nseeds: [2]\n"), HasSubstr("line 8: seeds is given twice"));
  EXPECT_THAT(error_of(head + tasks + methods + "keep_models: some\n"),
              HasSubstr("one of last, all, none, got 'some'"));
  EXPECT_THAT(error_of(head + "tasks: []\n" + methods), HasSubstr("tasks: expected a list"));
  EXPECT_THAT(error_of(head + "tasks: [{name: a, train: t, evl: e}]\n" + methods),
              HasSubstr("line 3: tasks[0].evl is not a known key; did you mean eval?"));
  EXPECT_THAT(error_of(head + "tasks: [{name: a, train: t}]\n" + methods), HasSubstr("tasks[0].eval is required"));
  EXPECT_THAT(
      error_of(head + "tasks: [{name: a, train: t, eval: e, metric: f1}]\n" + methods),
      HasSubstr("tasks[0].metric: expected one of loss, token_accuracy, choice_accuracy, exact_match, got 'f1'"));
  EXPECT_THAT(error_of(head + "tasks: [{name: a/b, train: t, eval: e}]\n" + methods),
              HasSubstr("tasks[0].name: expected letters, digits"));
  EXPECT_THAT(error_of(head + "tasks: [{name: .., train: t, eval: e}]\n" + methods), HasSubstr("tasks[0].name"));
  EXPECT_THAT(error_of(head + "tasks: [{name: a, train: t, eval: e}, {name: a, train: t, eval: e}]\n" + methods),
              HasSubstr("tasks[1].name: 'a' is given twice"));
  EXPECT_THAT(error_of(head + "tasks: [{name: a, train: {x: 1}, eval: e}]\n" + methods),
              HasSubstr("tasks[0].train: expected a JSONL file or a list of them, got a map"));
  EXPECT_THAT(error_of(head + tasks + "methods: [{name: sft, learning_rates: [0]}]\n"),
              HasSubstr("methods[0].learning_rates: expected a list of numbers above 0, got '0'"));
  EXPECT_THAT(error_of(head + tasks + "methods: [{name: sft, learning_rates: [1, 1.0]}]\n"), HasSubstr("given twice"));
  EXPECT_THAT(error_of("a: [\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(error_of("- 1\n"), HasSubstr("expected a map of keys and values, got a list"));
  EXPECT_THAT(error_of(""), HasSubstr("expected a map of keys and values, got nothing"));
}

// A study takes long to write; its mistakes should not be found one by one.
TEST(StudyOptions, AllProblemsComeInOneMessageOnceEach) {
  const std::string error = error_of(
      "base_model: m\nsedes: [1]\ntasks:\n  - {name: a, train: t, evl: e}\n  - {name: b/c, train: t, eval: e}\n"
      "held: [{name: h, data: d, limit: 3}]\nkeep_models: some\n"
      "methods:\n  - {name: sft, learning_rates: [0]}\n  - {name: kl, learning_rates: [1.0], training: {max_stps: 3}}\n"
      "training: {warmup_steps: 3, warmup_ratio: 0.5}\n");
  for (const char* problem : {"10 problems:", "c.yaml, line 2: sedes is not a known key; did you mean seeds?",
                              "c.yaml, line 1: output_dir is required", "keep_models: expected one of",
                              "tasks[0].evl is not a known key; did you mean eval?", "tasks[0].eval is required",
                              "tasks[1].name: expected letters", "held[0].limit: is for answers",
                              "methods[0].learning_rates: expected a list", "line 10: max_stps is not a known key",
                              "line 11: warmup_steps and warmup_ratio are both given"}) {
    EXPECT_THAT(error, HasSubstr(problem));
  }
  EXPECT_LT(error.find("c.yaml, line 1:"), error.find("c.yaml, line 2:"));
}

TEST(StudyOptions, TrainingKeysHaveTheChecksAndLinesOfTrain) {
  EXPECT_THAT(error_of(head + tasks + methods + "training:\n  max_stps: 3\n"),
              HasSubstr("c.yaml, line 8: max_stps is not a known key; did you mean max_steps?"));
  EXPECT_THAT(error_of(head + tasks +
                       "methods:\n  - name: sft\n    learning_rates: [1]\n    training:\n"
                       "      weight_decay: -1\n"),
              HasSubstr("c.yaml, line 10: weight_decay: expected a number of at least 0, got '-1'"));
  EXPECT_THAT(error_of(head + tasks + methods + "training: {warmup_steps: 3, warmup_ratio: 0.5}\n"),
              HasSubstr("one of them is enough"));
  EXPECT_THAT(error_of(head + tasks + methods + "training: {max_steps: 1, max_steps: 2}\n"),
              HasSubstr("training.max_steps is given twice"));
  EXPECT_THAT(error_of(head + tasks + methods + "training: 3\n"), HasSubstr("training: expected a map"));
  for (const char* key : {"base_model", "output_dir", "datasets", "test_datasets", "eval_steps", "eval_on_start",
                          "early_stopping_patience", "learning_rate", "seed"}) {
    EXPECT_THAT(error_of(head + tasks + methods + "training: {" + key + ": 1}\n"),
                HasSubstr(fmt::format("line 7: training.{} cannot be set", key)));
  }
  EXPECT_THAT(error_of(head + tasks + "methods: [{name: a, learning_rates: [1], training: {seed: 1}}]\n"),
              HasSubstr("methods[0].training.seed cannot be set"));
}

TEST(StudyOptions, AMethodMayTakeAnothersModels) {
  const std::string sft = "methods:\n  - {name: sft, learning_rates: [1.0e-5, 1.0e-4]}\n";
  const auto o = parse(head + tasks + sft +
                       "  - {name: wise-ft, after: sft, average: [0.25, 0.5]}\n"
                       "  - {name: fapm, after: sft, keep: [0.1], learning_rates: [1.0e-4]}\n");
  EXPECT_FALSE(o.methods[0].after);
  EXPECT_THAT(o.methods[1].learning_rates, ElementsAre(1e-5, 1e-4)) << "those of the other";
  EXPECT_EQ(o.methods[1].after->how, train::TakeBack::average);
  EXPECT_THAT(o.methods[1].after->shares, ElementsAre(0.25, 0.5));
  EXPECT_EQ(o.methods[2].after->how, train::TakeBack::prune);
  EXPECT_EQ(o.methods[2].after->method, 0u);
  EXPECT_THAT(o.methods[2].learning_rates, ElementsAre(1e-4));
  EXPECT_TRUE(o.methods[2].training.empty());

  const auto error = [&](const std::string& method) { return error_of(head + tasks + sft + "  - {" + method + "}\n"); };
  EXPECT_THAT(error("name: a, after: b, average: [0.5]"),
              HasSubstr("line 8: methods[1].after: expected the name of a method that is given before, got 'b'"));
  EXPECT_THAT(error("name: a, after: sft"), HasSubstr("methods[1].average is required"));
  EXPECT_THAT(error("name: a, after: sft, average: [1.5]"),
              HasSubstr("methods[1].average: expected a list of shares between 0 and 1, got '1.5'"));
  EXPECT_THAT(error("name: a, after: sft, average: [0.5], keep: [0.5]"), HasSubstr("one of them is enough"));
  EXPECT_THAT(error("name: a, after: sft, keep: [0.5], training: {max_steps: 1}"),
              HasSubstr("methods[1].training: the models are those of sft"));
  EXPECT_THAT(error("name: a, after: sft, keep: [0.5], learning_rates: [1.0]"), HasSubstr("1e0 is not one of sft's"));
  EXPECT_THAT(error("name: a, learning_rates: [1.0], keep: [0.5]"), HasSubstr("methods[1].keep: needs after"));
  EXPECT_THAT(error("name: a, after: sft, keep: [0.5]}\n  - {name: b, after: a, keep: [0.5]"),
              HasSubstr("methods[2].after: a trains nothing either"));
}

TEST(StudyOptions, AnswersAndTheirRules) {
  const std::string held =
      "held:\n  - {name: own, prompts: [p.jsonl, q.jsonl], answers: base, limit: 9, temperature: 0}\n"
      "  - {name: sums, data: s.jsonl, metric: exact_match, match: number, marker: \"####\", max_new_tokens: 7}\n"
      "  - {name: text, data: t.jsonl}\n";
  const auto o = parse(head + tasks + held + methods);
  EXPECT_EQ(o.held[0].own_temperature, 0.0);
  EXPECT_THAT(o.held[0].data, ElementsAre("p.jsonl", "q.jsonl"));
  EXPECT_EQ(o.held[0].answering.limit, 9);
  EXPECT_FALSE(o.held[1].own_temperature);
  EXPECT_EQ(o.held[1].metric, Metric::exact_match);
  EXPECT_EQ(o.held[1].answering.rule, (data::AnswerRule{data::AnswerMatch::number, "####"}));
  EXPECT_EQ(o.held[1].answering.max_new_tokens, 7);
  EXPECT_EQ(parse(head + tasks + "held: [{name: a, prompts: p}]\n" + methods).held[0].own_temperature, 1.0);

  const auto error = [&](const std::string& set) {
    return error_of(head + tasks + "held: [{name: a, " + set + "}]\n" + methods);
  };
  EXPECT_THAT(error("data: d, marker: x"), HasSubstr("held[0].marker: is for metric: exact_match"));
  EXPECT_THAT(error("data: d, limit: 3"), HasSubstr("held[0].limit: is for answers"));
  EXPECT_THAT(error("data: d, temperature: 1"), HasSubstr("is for prompts that the base model answers"));
  EXPECT_THAT(error("prompts: p, data: d"), HasSubstr("one of them is enough"));
  EXPECT_THAT(error("prompts: p, answers: mine"), HasSubstr("expected base, got 'mine'"));
  EXPECT_THAT(error("prompts: p, temperature: -1"), HasSubstr("expected 0 or a number from 1e-6 to 1e6, got '-1'"));
  EXPECT_THAT(error("data: d, metric: exact_match, match: some"),
              HasSubstr("held[0].match: expected one of whole, contains, number, got 'some'"));
  EXPECT_THAT(error("data: d, metric: exact_match, limit: 0"), HasSubstr("an integer of at least 1, got '0'"));
}

// As in a configuration of inlay train.
TEST(StudyOptions, PathsAreThoseOfTheFilesFolder) {
  const inlay::testing::TempFolder folder;
  std::filesystem::create_directories(folder / "in/m");
  for (const char* file : {"in/a.jsonl", "in/t.jinja", "in/m/config.json"}) folder.write(file, "");
  folder.write("in/study.yaml",
               "base_model: m\noutput_dir: o\n"
               "tasks: [{name: a, train: a.jsonl, eval: a.jsonl}]\nheld: [{name: h, data: [a.jsonl, other.jsonl]}]\n"
               "methods: [{name: sft, learning_rates: [1], training: {chat_template: t.jinja, osft: "
               "{unfreeze_rank_ratio: 0.5, calibration: {data: [sample, a.jsonl]}}}}]\n");
  const auto o = load_studies(folder / "in/study.yaml").front();
  const std::string data = (folder / "in/a.jsonl").string();
  EXPECT_EQ(o.base_model, (folder / "in/m").string());
  EXPECT_EQ(o.output_dir, (folder / "in/o").string());
  EXPECT_THAT(o.tasks[0].train, ElementsAre(data));
  EXPECT_THAT(o.tasks[0].eval, ElementsAre(data));
  EXPECT_THAT(o.held[0].data, ElementsAre(data, (folder / "in/other.jsonl").string()))
      << "what is nowhere is missing where it was looked for";
  EXPECT_EQ(o.methods[0].training[0].chat_template, (folder / "in/t.jinja").string());
  EXPECT_THAT(o.methods[0].training[0].osft.calibration.data, ElementsAre("sample", data));
}

TEST(StudyOptions, AFileMayHoldSeveral) {
  const auto studies = parse_studies(
      "base_model: m\noutput_dir: o\nseeds: [1, 2]\ntraining: {sequence_len: 64, max_steps: 9}\n" + methods +
          "studies:\n"
          "  - {name: short, tasks: [{name: a, train: a.jsonl, eval: a.jsonl}], training: {max_steps: 3}}\n"
          "  - name: long\n"
          "    tasks: [{name: b, train: b.jsonl, eval: b.jsonl}]\n"
          "    methods: [{name: slow, learning_rates: [1.0e-5]}, {name: fast, learning_rates: [1.0e-3]}]\n"
          "    seeds: [7]\n",
      "c.yaml");
  ASSERT_EQ(studies.size(), 2u);
  const ContinualOptions &brief = studies[0], &lengthy = studies[1];
  EXPECT_EQ(brief.name, "short");
  EXPECT_EQ(brief.output_dir, "o/short");
  EXPECT_EQ(lengthy.output_dir, "o/long");
  EXPECT_EQ(lengthy.base_model, "m");
  EXPECT_EQ(brief.methods[0].training[0].sequence_len, 64);
  EXPECT_EQ(brief.methods[0].training[0].max_steps, 3) << "maps are merged";
  EXPECT_EQ(lengthy.methods[0].training[0].max_steps, 9);
  EXPECT_EQ(brief.methods[0].name, "sft");
  ASSERT_EQ(lengthy.methods.size(), 2u) << "lists are replaced";
  EXPECT_EQ(lengthy.methods[0].name, "slow");
  EXPECT_THAT(brief.seeds, ElementsAre(1, 2));
  EXPECT_THAT(lengthy.seeds, ElementsAre(7));
  EXPECT_TRUE(parse(head + tasks + methods).name.empty());
}

// Those of a study that is alone, with the line of the file, and said once where they are all studies'.
TEST(StudyOptions, MistakesInOneOfSeveralAreTold) {
  const std::string one = "tasks: [{name: a, train: a.jsonl, eval: a.jsonl}]";
  EXPECT_THAT(error_of(head + methods + "studies:\n  - {name: a, " + one + "}\n  - {name: a, " + one + "}\n"),
              HasSubstr("c.yaml, line 6: studies[1].name: 'a' is given twice"));
  EXPECT_THAT(error_of(head + methods + "studies: [{name: a, output_dir: p, " + one + "}]\n"),
              HasSubstr("line 4: studies[0].output_dir is not a known key"));
  EXPECT_THAT(error_of(head + methods + "studies: [{" + one + "}]\n"), HasSubstr("studies[0].name"));
  EXPECT_THAT(error_of(head + methods + "studies: []\n"), HasSubstr("studies"));
  EXPECT_THAT(error_of(head + methods + "studies: 3\n"),
              HasSubstr("expected a list of {name, tasks, methods}, got '3'"));
  const std::string both = error_of(head + "seeds: [-1]\n" + methods + "studies:\n  - {name: a, " + one +
                                    "}\n  - {name: b, " + one + ", training: {max_stepz: 4}}\n");
  EXPECT_THAT(both, HasSubstr("2 problems"));
  EXPECT_THAT(both, HasSubstr("line 3: seeds: expected a list of integers of at least 0, got '-1'"));
  EXPECT_THAT(both, HasSubstr("line 7: max_stepz"));
}

TEST(StudyOptions, RatesAreNamedBriefly) {
  EXPECT_EQ(rate_name(1e-4), "1e-4");
  EXPECT_EQ(rate_name(3.0e-5), "3e-5");
  EXPECT_EQ(rate_name(0.00025), "2.5e-4");
  EXPECT_EQ(rate_name(1), "1e0");
  EXPECT_EQ(rate_name(2e-12), "2e-12");
  EXPECT_EQ(rate_name(3e20), "3e20");
}

}  // namespace
}  // namespace inlay::study
