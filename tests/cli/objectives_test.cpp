#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>

#include <nlohmann/json.hpp>

#include "io/checkpoint.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "support/chat_model.h"
#include "support/command.h"
#include "support/device_tensors.h"
#include "support/paths.h"

// Runs that learn something else than the next token, as a user starts them.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class CliObjectives : public ::testing::TestWithParam<Device> {
 protected:
  CliObjectives() {
    const CommandResult made = inlay({"init", "--preset", "tiny", folder / "base"});
    EXPECT_EQ(made.code, 0) << made.err;
    std::string pairs, judged;
    for (int i = 0; i < 12; ++i) {
      const std::string prompt = "number " + std::to_string(i) + " is";
      pairs +=
          nlohmann::json({{"prompt", prompt}, {"chosen", " even."}, {"rejected", " not a number at all."}}).dump() +
          "\n";
      judged +=
          nlohmann::json({{"prompt", prompt}, {"completion", i % 2 == 0 ? " even." : " odd."}, {"label", i % 3 != 0}})
              .dump() +
          "\n";
    }
    folder.write("pairs.jsonl", pairs);
    folder.write("judged.jsonl", judged);
  }

  CommandResult train(const std::string& name, const std::string& data, const std::string& more,
                      std::vector<std::string> arguments = {}) {
    folder.write(name + ".yaml",
                 "base_model: " + (folder / "base").string() + "\noutput_dir: " + (folder / name).string() +
                     "\ndatasets: [{path: " + (folder / data).string() +
                     "}]\nlearning_rate: 3.0e-3\nsequence_len: 64\nmicro_batch_size: 2\nmax_steps: 8\n"
                     "deterministic: true\ndtype: fp32\ndataset_prepared_path: " +
                     (folder / "prepared").string() + "\ndevice: " + std::string(name_of(GetParam())) + "\n" + more);
    arguments.insert(arguments.begin(), {"train", folder / (name + ".yaml")});
    return inlay(arguments);
  }
  std::vector<nlohmann::json> metrics(const std::string& name) const {
    std::vector<nlohmann::json> records;
    std::istringstream lines(read_text(folder / name / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) records.push_back(nlohmann::json::parse(line));
    return records;
  }

  TempFolder folder;
};

TEST_P(CliObjectives, EveryPreferenceLossLearns) {
  for (const char* rl : {"dpo", "ipo", "simpo", "orpo"}) {
    const CommandResult result =
        train(rl, "pairs.jsonl", std::string("rl: ") + rl + "\nval_set_size: 3\neval_on_start: false\n");
    ASSERT_EQ(result.code, 0) << rl << result.err;
    const auto records = metrics(rl);
    const nlohmann::json &first = records.front(), &last = records.at(7), &evaluation = records.back();
    EXPECT_GT(last.at("rewards/margins").get<double>(), first.at("rewards/margins").get<double>()) << rl;
    EXPECT_LT(last.at("loss").get<double>(), first.at("loss").get<double>()) << rl;
    EXPECT_TRUE(evaluation.contains("eval_rewards/accuracies")) << rl << evaluation.dump();
  }
  const CommandResult kto = train("kto", "judged.jsonl", "rl: kto\n");
  ASSERT_EQ(kto.code, 0) << kto.err;
  EXPECT_NEAR(metrics("kto").front().at("loss").get<double>(), 0.5, 1e-6);  // σ(0): the model is its own reference
  EXPECT_GT(metrics("kto").at(7).at("rewards/chosen").get<double>(), 0);
  EXPECT_TRUE(metrics("kto").at(7).contains("kl"));
}

// At its first step the model is its own reference; a second run finds the log-probabilities that the first has kept,
// and does the same to the last bit, in one go or resumed.
TEST_P(CliObjectives, TheReferenceIsComputedOnceAndStays) {
  const std::string dpo = "rl: dpo\nsave_steps: 4\n";
  const CommandResult first = train("first", "pairs.jsonl", dpo);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err + first.out, HasSubstr("log-probabilities of 12 documents computed"));
  const auto records = metrics("first");
  EXPECT_NEAR(records.front().at("loss").get<double>(), std::log(2.0), 1e-6);
  EXPECT_NEAR(records.front().at("rewards/margins").get<double>(), 0, 1e-5);
  // Rounded to what the log shows they are zero, and not less than that.
  EXPECT_THAT(first.err + first.out, HasSubstr("rewards/rejected 0.0000"));
  EXPECT_THAT(first.err + first.out, Not(HasSubstr("-0.0000")));
  const CommandResult second = train("second", "pairs.jsonl", dpo);
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.err + second.out, HasSubstr("log-probabilities from"));
  fs::remove_all(folder / "second/checkpoint-8");
  const CommandResult resumed = train("second", "pairs.jsonl", dpo, {"--resume"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(records[i].at("loss"), metrics("second")[i].at("loss")) << i;
    EXPECT_EQ(records[i].at("grad_norm"), metrics("second")[i].at("grad_norm")) << i;
  }
}

// The same weights compute something else under another rotation.
TEST_P(CliObjectives, AnotherConfigurationHasAnotherReference) {
  ASSERT_EQ(train("first", "pairs.jsonl", "rl: dpo\n").code, 0);
  auto config = nlohmann::json::parse(read_text(folder / "base/config.json"));
  config.erase("rope_parameters");
  config["rope_theta"] = 500.0;
  folder.write("base/config.json", config.dump());
  const CommandResult second = train("second", "pairs.jsonl", "rl: dpo\n");
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_NEAR(metrics("second").front().at("loss").get<double>(), std::log(2.0), 1e-6);
  EXPECT_THAT(second.err + second.out, HasSubstr("log-probabilities of 12 documents computed"));
}

// Weights may differ in a few places alone, as where nothing but some embeddings was trained, which a hash of samples
// does not see.
TEST_P(CliObjectives, AFewOtherWeightsHaveAnotherReference) {
  ASSERT_EQ(train("first", "pairs.jsonl", "rl: dpo\n").code, 0);
  const std::uint64_t sampled = io::Checkpoint(folder / "base").sampled_hash();
  {
    std::ifstream in(folder / "base/model.safetensors", std::ios::binary);
    std::uint64_t header = 0;
    in.read(reinterpret_cast<char*>(&header), sizeof header);
    std::string text(header, ' ');
    in.read(text.data(), static_cast<std::streamsize>(header));
    const auto tensor = nlohmann::json::parse(text).at("model.embed_tokens.weight");
    const std::uint64_t begin = tensor.at("data_offsets")[0], end = tensor.at("data_offsets")[1];
    const std::uint64_t row = (end - begin) / tensor.at("shape")[0].get<std::uint64_t>();
    std::fstream out(folder / "base/model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(sizeof header + header + begin + row * 'e' + row / 2));
    const std::vector<float> other(row / 2 / sizeof(float), 0.75f);  // half of a letter's row
    out.write(reinterpret_cast<const char*>(other.data()), static_cast<std::streamsize>(row / 2));
  }
  ASSERT_EQ(io::Checkpoint(folder / "base").sampled_hash(), sampled) << "choose other weights";
  const CommandResult second = train("second", "pairs.jsonl", "rl: dpo\n");
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_NEAR(metrics("second").front().at("loss").get<double>(), std::log(2.0), 1e-6);
  EXPECT_THAT(second.err + second.out, HasSubstr("log-probabilities of 12 documents computed"));
}

// Beside its weights and its base's format, what the model is at its start depends on what trains whole, and so is not
// in four bits, and on which layers multiply in fp8.
TEST_P(CliObjectives, AnotherBeginningHasAnotherReference) {
  const std::string lora = "rl: dpo\nadapter: lora\nlora_alpha: 8\nlora_target_modules: [q_proj, v_proj]\n";
  std::vector<std::string> beginnings = {lora + "lora_r: 4\nload_in_4bit: true\n",
                                         lora + "lora_r: 4\nload_in_4bit: true\nlora_modules_to_save: [down_proj]\n"};
  if (GetParam() == Device::cpu) {  // not every GPU multiplies fp8
    for (const char* more : {"", "fp8: {skip_first: 1}\n", "fp8: {skip_last: 1}\n", "fp8: {layers: [1]}\n"}) {
      beginnings.push_back(std::string("rl: dpo\nmatmul_dtype: fp8\n") + more);
    }
  }
  for (const std::string& beginning : beginnings) {
    fs::remove_all(folder / "run");
    const CommandResult result = train("run", "pairs.jsonl", beginning);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err + result.out, HasSubstr("log-probabilities of 12 documents computed")) << beginning;
    EXPECT_NEAR(metrics("run").front().at("rewards/margins").get<double>(), 0, 1e-5) << beginning;
  }
  // A new adapter changes nothing, whatever its rank.
  const CommandResult known = train("known", "pairs.jsonl", lora + "lora_r: 8\nload_in_4bit: true\n");
  EXPECT_THAT(known.err + known.out, HasSubstr("log-probabilities from"));
}

// What a command without a configuration cannot do is not advised.
TEST_P(CliObjectives, PreferencesAreNoTexts) {
  for (const auto& [command, file, what] : {std::tuple{"eval", "pairs.jsonl", "such as the chosen answers alone"},
                                            std::tuple{"eval", "judged.jsonl", "such as the good answers alone"},
                                            std::tuple{"grad", "pairs.jsonl", "such as the chosen answers alone"}}) {
    std::vector<std::string> words = {command,       folder / "base", "--data",
                                      folder / file, "--device",      std::string(name_of(GetParam()))};
    if (words[0] == "grad") words.insert(words.end(), {"--out", folder / "grad.safetensors"});
    const CommandResult result = inlay(words);
    EXPECT_EQ(result.code, 2) << command;
    EXPECT_THAT(result.err, HasSubstr(what)) << command;
    EXPECT_THAT(result.err, Not(HasSubstr("set rl"))) << command;
  }
}

// What the summary says of the result is one evaluation's, also where the best is not the last, and after a resume.
TEST_P(CliObjectives, TheBestModelHasItsOwnMetrics) {
  const std::string worse =
      "rl: dpo\nval_set_size: 3\neval_steps: 2\nsave_steps: 2\nload_best_model_at_end: true\n"
      "metric_for_best_model: loss\ngreater_is_better: true\n";
  ASSERT_EQ(train("run", "pairs.jsonl", worse).code, 0);
  const auto check = [&] {
    const auto summary = nlohmann::json::parse(read_text(folder / "run/summary.json"));
    ASSERT_EQ(summary.at("result_step"), 2);
    int checked = 0;
    for (const nlohmann::json& record : metrics("run")) {
      if (record.at("step") != 2 || !record.contains("eval_loss")) continue;
      for (const auto& [key, value] : record.items()) {
        if (!key.starts_with("eval_") || key == "eval_tokens") continue;
        EXPECT_EQ(summary.at(key), value) << key;
        ++checked;
      }
    }
    EXPECT_GT(checked, 3);
    EXPECT_FALSE(summary.contains("eval_accuracy"));
  };
  check();
  for (const char* name : {"checkpoint-8", "checkpoint-6", "summary.json"}) fs::remove_all(folder / "run" / name);
  const CommandResult resumed = train("run", "pairs.jsonl", worse, {"--resume"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  check();
}

// A teacher on the device or the host says the same, and so do its log-probabilities in the data.
TEST_P(CliObjectives, DistillationComesFromAFolderOrFromTheData) {
  ASSERT_EQ(inlay({"init", "--preset", "tiny", "--seed", "5", folder / "teacher"}).code, 0);
  folder.write("texts.jsonl", "{\"text\": \"one two three four\"}\n{\"text\": \"five six seven\"}\n");
  const std::string teacher = "kd_trainer: true\nkd_teacher: teacher\nkd_beta: 0.5\n";  // beside the file
  ASSERT_EQ(train("device", "texts.jsonl", teacher).code, 0);
  ASSERT_EQ(train("host", "texts.jsonl", teacher + "kd_teacher_on: host\n").code, 0);
  EXPECT_LT(metrics("device").at(7).at("kd_loss").get<double>(), metrics("device").front().at("kd_loss").get<double>());
  EXPECT_EQ(metrics("device").at(7).at("loss"), metrics("host").at(7).at("loss"));
  folder.write(
      "kept.jsonl",
      "{\"input_ids\": [5, 6, 7], \"logprobs\": [[-0.1, -3], [-0.7, -0.7]], \"target_token_ids\": [[6, 9], [1, 2]]}\n");
  const CommandResult kept = train("kept", "kept.jsonl", "kd_trainer: true\n");
  ASSERT_EQ(kept.code, 0) << kept.err;
  EXPECT_LT(metrics("kept").at(7).at("kd_loss").get<double>(), metrics("kept").front().at("kd_loss").get<double>());
}

// Another vocabulary is found before anything is read or held; so is one of the same size with other tokens.
TEST_P(CliObjectives, ATeacherHasTheModelsVocabulary) {
  const fs::path other = source_folder() / "tests/golden/models/llama_linear_sharded";
  folder.write("broken.jsonl", "no row\n");  // which nobody reads before
  const CommandResult size = train("a", "broken.jsonl", "kd_trainer: true\nkd_teacher: " + other.string() + "\n");
  EXPECT_EQ(size.code, 2);
  EXPECT_THAT(size.err, HasSubstr("a teacher must have the model's"));
  EXPECT_THAT(inlay({"plan", folder / "a.yaml"}).err, HasSubstr("a teacher must have the model's"));
  ASSERT_EQ(inlay({"init", "--preset", "tiny", "--seed", "5", folder / "teacher"}).code, 0);
  folder.write("texts.jsonl", "{\"text\": \"one two three four\"}\n");
  ASSERT_EQ(train("b", "texts.jsonl", "kd_trainer: true\nkd_teacher: teacher\n").code, 0);
  auto tokenizer = nlohmann::json::parse(read_text(folder / "teacher/tokenizer.json"));
  std::swap(tokenizer["model"]["vocab"]["a"], tokenizer["model"]["vocab"]["b"]);
  folder.write("teacher/tokenizer.json", tokenizer.dump());
  const CommandResult tokens = train("c", "texts.jsonl", "kd_trainer: true\nkd_teacher: teacher\n");
  EXPECT_EQ(tokens.code, 2);
  EXPECT_THAT(tokens.err, HasSubstr("kd_teacher: token 97 is 'b' in "));
  // Data of tokens needs no tokenizer, so that one which is not read here is no mistake.
  folder.write("teacher/tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
  folder.write("tokens.jsonl", "{\"input_ids\": [5, 6, 7, 8], \"labels\": [5, 6, 7, 8]}\n");
  const CommandResult unread = train("d", "tokens.jsonl", "kd_trainer: true\nkd_teacher: teacher\n");
  EXPECT_EQ(unread.code, 0) << unread.err;
}

// Gives the (tied) embedding of a model more rows, which stand for no token.
void add_rows_to_embedding(const fs::path& model, std::int64_t more, float value) {
  constexpr const char* name = "model.embed_tokens.weight";
  const fs::path file = model / "model.safetensors", longer = model / "longer.safetensors";
  {
    const io::SafetensorsFile before(file);
    std::vector<io::TensorSpec> specs;
    for (const std::string& tensor : before.names()) {
      specs.push_back({.name = tensor, .shape = before.tensor(tensor).shape().extents()});
      if (tensor == name) specs.back().shape[0] += more;
    }
    io::SafetensorsWriter writer(longer, specs);
    for (const io::TensorSpec& spec : specs) {
      const ConstView tensor = before.tensor(spec.name);
      const auto* bytes = static_cast<const std::byte*>(tensor.data());
      writer.write_part(spec.name, 0, {bytes, tensor.bytes()});
      const std::vector<float> rest((spec.bytes() - tensor.bytes()) / sizeof(float), value);
      if (!rest.empty()) writer.write_part(spec.name, tensor.bytes(), std::as_bytes(std::span(rest)));
    }
    writer.finish();
  }
  fs::rename(longer, file);
  auto config = nlohmann::json::parse(read_text(model / "config.json"));
  config["vocab_size"] = config["vocab_size"].get<std::int64_t>() + more;
  std::ofstream(model / "config.json") << config.dump();
}

// Heads of a family are padded to different sizes: what no token has is no part of the vocabulary.
TEST_P(CliObjectives, RowsOfATeachersHeadThatNoTokenHasDoNotCount) {
  ASSERT_EQ(inlay({"init", "--preset", "tiny", "--seed", "5", folder / "teacher"}).code, 0);
  folder.write("texts.jsonl", "{\"text\": \"one two three four\"}\n");
  const std::string keys = "kd_trainer: true\nkd_teacher: teacher\nkd_beta: 0.5\n";
  ASSERT_EQ(train("equal", "texts.jsonl", keys).code, 0);
  add_rows_to_embedding(folder / "teacher", 3, 100.0f);
  const CommandResult padded = train("padded", "texts.jsonl", keys);
  ASSERT_EQ(padded.code, 0) << padded.err;
  EXPECT_EQ(metrics("padded").at(7).at("kd_loss"), metrics("equal").at(7).at("kd_loss"));
  EXPECT_EQ(inlay({"plan", folder / "padded.yaml"}).code, 0);

  fs::rename(folder / "teacher/tokenizer.json", folder / "teacher/elsewhere.json");
  const CommandResult unknown = train("unknown", "texts.jsonl", keys);
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("which only a tokenizer.json shows"));
}

// To go on by another objective may well be meant, but it is not the same run any more.
TEST_P(CliObjectives, AResumedRunSaysThatItLearnsByAnotherObjective) {
  ASSERT_EQ(train("run", "pairs.jsonl", "rl: dpo\nsave_steps: 4\n").code, 0);
  const auto resumed = [&](const std::string& keys) {
    fs::remove_all(folder / "run/checkpoint-8");
    const CommandResult result = train("run", "pairs.jsonl", keys + "save_steps: 4\n", {"--resume"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.err;
  };
  const std::string other = "so far it learned with another objective: preferences by dpo (sigmoid)";
  EXPECT_THAT(resumed("rl: dpo\n"), Not(HasSubstr("so far it learned")));
  EXPECT_THAT(resumed("rl: dpo\ndpo_loss_type: hinge\n"), HasSubstr(other));
  EXPECT_THAT(resumed("rl: dpo\nrl_beta: 0.5\n"), HasSubstr(other));
  fs::remove_all(folder / "run");
  ASSERT_EQ(train("run", "pairs.jsonl", "rl: dpo\nrl_beta: 0.5\nsave_steps: 4\n").code, 0);
  EXPECT_THAT(resumed("rl: dpo\n"), HasSubstr(other + ", rl_beta 0.5"));

  // The same teacher by another path is the same one.
  ASSERT_EQ(inlay({"init", "--preset", "tiny", "--seed", "5", folder / "teacher"}).code, 0);
  folder.write("texts.jsonl", "{\"text\": \"one two three four\"}\n");
  ASSERT_EQ(train("kd", "texts.jsonl", "kd_trainer: true\nkd_teacher: teacher\nsave_steps: 4\n").code, 0);
  fs::remove_all(folder / "kd/checkpoint-8");
  const CommandResult same = inlay({"train", folder / "kd/config.yaml", "--resume"});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_THAT(same.err, Not(HasSubstr("so far it learned")));
}

TEST_P(CliObjectives, TokensThatSurpriseTheBaseModelAreMasked) {
  folder.write("texts.jsonl", "{\"text\": \"one two three four\"}\n{\"text\": \"five six seven\"}\n");
  const CommandResult none = train("none", "texts.jsonl", "loss: {token_weight: stm}\n");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("raise it"));
  ASSERT_EQ(train("plain", "texts.jsonl", "").code, 0);
  const CommandResult some = train("some", "texts.jsonl", "loss: {token_weight: stm, stm_perplexity: 300}\n");
  ASSERT_EQ(some.code, 0) << some.err;
  EXPECT_LT(metrics("some").front().at("valid_tokens").get<int>(),
            metrics("plain").front().at("valid_tokens").get<int>());
  EXPECT_LT(metrics("some").front().at("loss").get<double>(), metrics("plain").front().at("loss").get<double>());
}

// Which tokens those are, found from the base model's logits: the first step's loss is the mean over the others.
TEST_P(CliObjectives, MaskedTokensAreThoseThatTheLogitsSay) {
  const std::vector<std::vector<std::int32_t>> texts = {{5, 9, 2, 17, 30, 8, 21, 4}, {40, 3, 3, 12, 7}, {11, 60}};
  std::string rows;
  for (const auto& ids : texts) rows += nlohmann::json({{"input_ids", ids}}).dump() + "\n";
  folder.write("tokens.jsonl", rows);
  const CommandResult grad = inlay({"grad", folder / "base", "--data", folder / "tokens.jsonl", "--out", folder / "g",
                                    "--logits", "--device", std::string(name_of(GetParam())), "--dtype", "fp32"});
  ASSERT_EQ(grad.code, 0) << grad.err;
  const io::SafetensorsFile file(folder / "g");
  std::vector<double> losses;
  for (std::size_t d = 0; d < texts.size(); ++d) {
    const ConstView logits = file.tensor("logits." + std::to_string(d));
    const auto vocab = static_cast<std::size_t>(logits.size()) / texts[d].size();
    for (std::size_t i = 1; i < texts[d].size(); ++i) {
      const float* row = logits.as<float>() + (i - 1) * vocab;
      double sum = 0;
      for (std::size_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]));
      losses.push_back(std::log(sum) - static_cast<double>(row[texts[d][i]]));
    }
  }
  std::ranges::sort(losses);
  const std::size_t kept = losses.size() / 2;
  const double between = (losses[kept - 1] + losses[kept]) / 2;
  ASSERT_GT(losses[kept] - losses[kept - 1], 1e-4) << "choose other texts";
  const CommandResult result = train(
      "masked", "tokens.jsonl", fmt::format("loss: {{token_weight: stm, stm_perplexity: {}}}\n", std::exp(between)));
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json first = metrics("masked").front();
  EXPECT_EQ(first.at("valid_tokens").get<std::size_t>(), kept);
  const double mean = std::accumulate(losses.begin(), losses.begin() + static_cast<std::ptrdiff_t>(kept), 0.0) /
                      static_cast<double>(kept);
  EXPECT_NEAR(first.at("loss").get<double>(), mean, 1e-5);
}

TEST_P(CliObjectives, PairsHaveTheNamesThatTheirDatasetSays) {
  folder.write("named.jsonl",
               "{\"conversation\": [{\"role\": \"user\", \"content\": \"q\"}], \"good\": \"yes\", \"bad\": \"no\"}\n");
  const CommandResult result =
      train("named",
            "named.jsonl, field_messages: conversation, field_chosen: good, field_rejected: bad, chat_template: chatml",
            "rl: dpo\n", {"--max_steps", "1"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("its rows are pairs of answers (conversation, good, bad)"));
  const CommandResult shown = inlay({"data", folder / "named.yaml"});
  EXPECT_THAT(shown.out, HasSubstr("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n⟦yes"));
}

TEST_P(CliObjectives, WrongDataIsAMistakeThatSaysWhatIsWanted) {
  const CommandResult pairs = train("a", "pairs.jsonl", "");
  EXPECT_EQ(pairs.code, 2);
  EXPECT_THAT(pairs.err, HasSubstr("set rl"));
  const CommandResult judged = train("b", "judged.jsonl", "rl: dpo\n");
  EXPECT_EQ(judged.code, 2);
  EXPECT_THAT(judged.err, HasSubstr("prompt, chosen and rejected"));
  folder.write("ties.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}\n");
  EXPECT_THAT(train("d", "ties.jsonl", "rl: dpo\n").err, HasSubstr("or the two of a pair are the same"));
  const CommandResult kto = train("c", "pairs.jsonl", "rl: kto\n");
  EXPECT_EQ(kto.code, 2);
  EXPECT_THAT(kto.err, HasSubstr("prompt, completion and label"));
}

INSTANTIATE_TEST_SUITE_P(, CliObjectives, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
