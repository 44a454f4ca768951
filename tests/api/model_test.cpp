#include <inlay/model.h>
#include <inlay/tokenizer.h>
#include <inlay/train.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/fixtures.h"

// The public surface over models and files, held against what transformers computed and what the program says.
namespace inlay {
namespace {

namespace fs = std::filesystem;
using testing::Fixture;
using testing::model_fixture;
using testing::TempFolder;
using testing::user_error_of;

constexpr const char* name = "llama_llama3_tied";

Model fp32_model(const fs::path& folder) { return Model(folder, {.device = "cpu", .dtype = "fp32"}); }

TEST(ApiModel, LogitsAndGradientsAreThoseOfTransformers) {
  const Fixture fixture(model_fixture(name));
  Model model = fp32_model(fixture.folder);
  EXPECT_EQ(model.vocab_size(), fixture.config.vocab);
  std::vector<TrainingDocument> documents;
  for (std::size_t d = 0; d < fixture.documents.size(); ++d) {
    const Document& document = fixture.documents[d];
    documents.push_back({document.input_ids, document.labels, {}});
    const std::vector<float> logits = model.logits(document.input_ids);
    const std::vector<double> expected = fixture.tensor("logits." + std::to_string(d));
    ASSERT_EQ(logits.size(), expected.size());
    for (std::size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 1e-4) << d << " " << i;
  }
  const Model::Gradients gradients = model.gradients(documents);
  EXPECT_NEAR(gradients.loss, fixture.expected["loss_fp64"].get<double>(), 1e-5);
  EXPECT_EQ(gradients.labels, fixture.expected["valid_labels"].get<std::int64_t>());
  EXPECT_GT(gradients.tensors.size(), 5u);
  for (const Model::NamedTensor& tensor : gradients.tensors) {
    const std::vector<double> expected = fixture.tensor("grad." + tensor.name);
    ASSERT_EQ(tensor.values.size(), expected.size()) << tensor.name;
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(tensor.values[i], expected[i], 1e-5) << tensor.name;
  }
}

TEST(ApiModel, GeneratesWhatTheProgramGenerates) {
  const fs::path folder = model_fixture(name);
  Model model = fp32_model(folder);
  Model::Sampling sampling{.max_new_tokens = 12, .temperature = 1.0f, .top_p = 0.9f, .seed = 7};
  const std::vector<std::int32_t> made = model.generate({1, 2, 3}, sampling);
  std::string text;
  for (const std::int32_t id : made) text += (text.empty() ? "" : " ") + std::to_string(id);
  EXPECT_EQ(testing::inlay({"generate", folder, "--ids", "1,2,3", "--max-new-tokens", "12", "--temperature", "1",
                            "--top-p", "0.9", "--seed", "7", "--device", "cpu"})
                .out,
            text + "\n");
  // Longer than there was room for, and with a listener who has had enough.
  sampling.max_new_tokens = 400;
  sampling.made = [](std::int32_t) { return false; };
  EXPECT_EQ(model.generate({1, 2, 3}, sampling), std::vector<std::int32_t>(made.begin(), made.begin() + 1));
}

// A turn of a chat often ends by another token than a text: generation_config.json of the base model names it, also
// where an adapter brings a tokenizer.
TEST(ApiModel, AnswersEndWhereTheProgramEndsThem) {
  const TempFolder folder;
  const std::string base = folder / "m", adapter = folder / "a",
                    data = folder.write("text.jsonl", "{\"text\": \"one\"}\n");
  ASSERT_EQ(testing::inlay({"init", "--preset", "tiny", base}).code, 0);
  const std::vector<std::int32_t> prompt = Tokenizer(base).encode("one");
  // Drawn: the likeliest token of a random model is always the same one.
  Model::Sampling sampling{.max_new_tokens = 6, .temperature = 1.0f, .seed = 3};
  const std::vector<std::int32_t> whole = fp32_model(base).generate(prompt, sampling);
  ASSERT_EQ(whole.size(), 6u);
  const std::int32_t eos = *Tokenizer(base).eos(), stop = whole[3];
  ASSERT_NE(whole[0], stop);
  EXPECT_EQ(fp32_model(base).stop_tokens(), std::vector{eos});
  folder.write("m/generation_config.json", fmt::format("{{\"eos_token_id\": [{}]}}", stop));
  const std::vector<std::int32_t> cut(whole.begin(), std::ranges::find(whole, stop));

  // The adapter changes next to nothing.
  const Configuration training{
      fmt::format("base_model: {}\noutput_dir: {}\ndatasets: [{{path: {}}}]\nadapter: lora\n"
                  "lora_r: 2\nlora_alpha: 2\nlora_target_linear: true\nlearning_rate: 1.0e-12\nmax_steps: 1\n"
                  "device: cpu\ndtype: fp32\ndataset_prepared_path: off\n",
                  base, adapter, data),
      "test",
      {}};
  ASSERT_EQ(train_model(training, {}), TrainingEnd::finished);
  ASSERT_TRUE(fs::exists(fs::path(adapter) / "tokenizer.json"));
  for (const std::string& with : {std::string(), adapter}) {
    Model model(base, {.device = "cpu", .dtype = "fp32", .adapter = with});
    EXPECT_EQ(model.stop_tokens(), (std::vector{eos, stop}));
    sampling.stops = model.stop_tokens();
    EXPECT_EQ(model.generate(prompt, sampling), cut);
    std::vector<std::string> words = {"generate",      base,  "--prompt", "one",  "--max-new-tokens", "6",
                                      "--device",      "cpu", "--dtype",  "fp32", "--quiet",          "--json",
                                      "--temperature", "1",   "--seed",   "3"};
    if (!with.empty()) words.insert(words.end(), {"--adapter", with});
    const testing::CommandResult result = testing::inlay(words);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(nlohmann::json::parse(result.out).at("ids").get<std::vector<std::int32_t>>(), cut) << with;
  }
}

TEST(ApiModel, MistakesAreTold) {
  Model model = fp32_model(model_fixture(name));
  EXPECT_EQ(user_error_of([&] { model.logits({}); }), "tokens: expected token ids, got none");
  EXPECT_NE(user_error_of([&] { model.generate({-1}, {}); }).find("prompt: -1 is not a token"), std::string::npos);
  EXPECT_EQ(user_error_of([&] { model.gradients({{{1, 2}, {1}, {}}}); }), "document 0: 1 labels for 2 tokens");
  EXPECT_NE(user_error_of([&] { Model("/nowhere"); }).find("/nowhere"), std::string::npos);
}

class ApiTrain : public ::testing::Test {
 protected:
  Configuration configuration(const std::string& more = "") const {
    const Fixture fixture(model_fixture(name));
    return {.yaml = "base_model: " + fixture.folder.string() + "\noutput_dir: " + (folder_ / "out").string() +
                    "\ndatasets: " + (fixture.folder / "data.jsonl").string() +
                    "\nlearning_rate: 1e-3\nmax_steps: 4\ndevice: cpu\ndtype: fp32\ndataset_prepared_path: off\n" +
                    more,
            .name = "test"};
  }
  TempFolder folder_;
};

TEST_F(ApiTrain, HandsOverEveryLineOfTheMetrics) {
  std::string seen;
  EXPECT_EQ(train_model(configuration(), {.on_metrics =
                                              [&](const std::string& line) {
                                                seen += line + "\n";
                                                return true;
                                              }}),
            TrainingEnd::finished);
  EXPECT_EQ(seen, testing::read_text(folder_ / "out/metrics.jsonl"));
  EXPECT_EQ(std::count(seen.begin(), seen.end(), '\n'), 4);
}

TEST_F(ApiTrain, StopsAfterTheStepAndGoesOn) {
  const auto stop_at = [](std::int64_t step) {
    return [step](const std::string& line) { return nlohmann::json::parse(line)["step"].get<std::int64_t>() < step; };
  };
  EXPECT_EQ(train_model(configuration(), {.on_metrics = stop_at(2)}), TrainingEnd::stopped);
  EXPECT_TRUE(fs::exists(folder_ / "out/checkpoint-2")) << "in " << folder_.path();
  EXPECT_EQ(train_model(configuration(), {.resume = true}), TrainingEnd::finished);
  const std::string resumed = testing::read_text(folder_ / "out/model.safetensors");
  fs::remove_all(folder_ / "out");
  EXPECT_EQ(train_model(configuration()), TrainingEnd::finished);
  EXPECT_EQ(testing::read_text(folder_ / "out/model.safetensors"), resumed);
}

TEST_F(ApiTrain, OneRunAtATime) {
  std::string message;
  train_model(configuration(), {.on_metrics = [&](const std::string&) {
                message = user_error_of([&] { train_model(configuration()); });
                return false;
              }});
  EXPECT_EQ(message, "train: another run is under way in this process, and there can be only one");
}

TEST_F(ApiTrain, PlansWhatTheProgramPlans) {
  const Configuration mine = configuration();
  const fs::path file = folder_.write("run.yaml", mine.yaml);
  const auto ours = nlohmann::json::parse(plan_training(mine));
  const auto theirs = nlohmann::json::parse(testing::inlay({"plan", file, "--json", "--quiet"}).out);
  for (const char* key : {"device_peak_bytes", "classes", "phases", "trainable_parameters", "fits"}) {
    EXPECT_EQ(ours[key], theirs[key]) << key;
  }
  EXPECT_NE(user_error_of([] { plan_training({.yaml = "learning_rat: 1", .name = "mine"}); }).find("mine, line 1"),
            std::string::npos);
}

TEST(ApiTokenizer, DatasetsAreReadAsTrainingReadsThem) {
  const Fixture fixture(model_fixture(name));
  const Dataset dataset(fixture.folder / "data.jsonl", {});
  ASSERT_EQ(dataset.size(), static_cast<std::int64_t>(fixture.documents.size()));
  for (std::int64_t d = 0; d < dataset.size(); ++d) {
    const Document& expected = fixture.documents[static_cast<std::size_t>(d)];
    EXPECT_EQ(dataset.read(d).input_ids, expected.input_ids);
    EXPECT_EQ(dataset.read(d).labels, expected.labels);
    EXPECT_EQ(dataset.length(d), static_cast<std::int64_t>(expected.input_ids.size()));
  }
  EXPECT_NE(user_error_of([&] { dataset.read(dataset.size()); }).find("counted from 0"), std::string::npos);
  EXPECT_NE(user_error_of([&] { Dataset(fixture.folder / "data.jsonl", {.format = "typ: alpaca"}); }).find("type"),
            std::string::npos);
}

TEST(ApiTokenizer, TemplatesRenderConversations) {
  const ChatTemplate chat = ChatTemplate::from_text(
      "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos }}{% endfor %}"
      "{% if add_generation_prompt %}me: {% endif %}");
  const std::string messages = R"([{"role": "you", "content": "hello"}])";
  EXPECT_EQ(chat.render(messages, {.add_generation_prompt = true, .variables = R"({"eos": "|"})"}), "you: hello|me: ");
  const std::vector<std::string_view> many(5, messages);
  EXPECT_EQ(chat.render(many, {}, 2), std::vector<std::string>(5, "you: hello"));
  EXPECT_EQ(user_error_of([&] { chat.render("{}"); }), "messages: expected an array, got an object");
}

}  // namespace
}  // namespace inlay
