#include "train/self_distillation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/byte_tokenizer.h"
#include "data/formats/text_formats.h"
#include "data/tokenizer/tokenizer.h"
#include "model/families/family.h"
#include "support/command.h"
#include "support/device_tensors.h"
#include "train/generate.h"
#include "train/session.h"

namespace inlay::train {
namespace {

using inlay::testing::TempFolder;
using ::testing::HasSubstr;

class TrainSelfDistillation : public ::testing::TestWithParam<Device> {
 protected:
  TrainSelfDistillation() {
    EXPECT_EQ(inlay::testing::inlay({"init", "--preset", "tiny", folder_ / "base"}).code, 0);
    folder_.write("rows.jsonl",
                  "{\"instruction\": \"Say one.\", \"output\": \"one\"}\n"
                  "{\"instruction\": \"Say two.\", \"input\": \"Twice.\", \"output\": \"two two\"}\n");
    options_.base_model = (folder_ / "base").string();
    options_.datasets = {{.path = (folder_ / "rows.jsonl").string()}};
    options_.sequence_len = 512;
    options_.device = GetParam();
    options_.dtype = DType::f32;
    options_.dataset_prepared_path = (folder_ / "prepared").string();
    options_.sdft.enabled = true;
    options_.sdft.shown = "{instruction} Not as in {response}.";
    options_.sdft.max_new_tokens = 6;
    config_ = model::load_config(options_.base_model);
    plain_ = read_run_data(options_, config_.vocab, console_).train.read_all();
  }

  // The prompts that show the answers.
  std::vector<std::vector<std::int32_t>> prompts() const {
    const data::Tokenizer tokenizer = data::Tokenizer::load(options_.base_model);
    std::vector<std::vector<std::int32_t>> result;
    for (const char* text : {"Say one. Not as in one.", "Say two.\nTwice. Not as in two two."}) {
      result.push_back(tokenizer.encode(data::alpaca_prompt(text, "")));
    }
    return result;
  }
  std::unique_ptr<Engine> engine() {
    std::size_t longest = 0;
    for (const std::vector<std::int32_t>& prompt : prompts()) longest = std::max(longest, prompt.size());
    for (const Document& document : plain_) longest = std::max(longest, document.input_ids.size());
    EngineOptions made =
        engine_options(Purpose::generation, {.device = GetParam(), .compute = DType::f32},
                       {.tokens = 1, .document = static_cast<std::int64_t>(longest) + options_.sdft.max_new_tokens});
    made.decode_sequences = 2;
    return load_engine(options_.base_model, config_, made, console_);
  }
  // What the model says to them.
  std::vector<std::vector<std::int32_t>> said() {
    return generate(*engine(), prompts(), {.count = options_.sdft.max_new_tokens, .drawing = {.temperature = 1.0f}});
  }

  // Files of answers that are kept.
  std::size_t kept() const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "prepared")) {
      count += entry.path().filename().string().starts_with("sdft-") ? 1 : 0;
    }
    return count;
  }

  std::vector<Document> rewritten() { return read_rewritten(options_, config_, console_).train.read_all(); }

  TempFolder folder_;
  options::TrainOptions options_;
  model::ModelConfig config_;
  Console console_{true};
  std::vector<Document> plain_;
};

TEST_P(TrainSelfDistillation, AnAnswerThatDoesNotEndIsNotLearned) {
  const std::vector<Document> documents = rewritten();  // random weights never end it
  ASSERT_EQ(documents.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(documents[i].input_ids, plain_[i].input_ids);
    EXPECT_EQ(documents[i].labels, plain_[i].labels);
  }
}

TEST_P(TrainSelfDistillation, TheModelsOwnWordsTakeTheAnswersPlace) {
  // A token that the model does say ends its answers: those of the first row are kept, those of the second go on.
  const auto texts = said();
  const std::int32_t stop = texts[0].back();
  const auto end = std::ranges::find(texts[0], stop);
  const bool second = std::ranges::find(texts[1], stop) != texts[1].end();
  ASSERT_NE(end, texts[0].begin()) << "nothing would be said before it";
  folder_.write("base/generation_config.json", "{\"eos_token_id\": " + std::to_string(stop) + "}");
  const std::vector<Document> documents = rewritten();
  const auto prompt =
      static_cast<std::size_t>(std::ranges::find_if(plain_[0].labels, is_label) - plain_[0].labels.begin());
  std::vector<std::int32_t> ids(plain_[0].input_ids.begin(),
                                plain_[0].input_ids.begin() + static_cast<std::ptrdiff_t>(prompt));
  ids.insert(ids.end(), texts[0].begin(), end);
  ids.push_back(data::ByteTokenizer::eos);  // what ended the data's own answer
  EXPECT_EQ(documents[0].input_ids, ids);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(documents[0].labels[i], i < prompt ? ignore_label : ids[i]) << i;
  }
  EXPECT_EQ(documents[1].input_ids == plain_[1].input_ids, !second);

  // Kept for the next run.
  EXPECT_EQ(kept(), 1u);
  EXPECT_EQ(rewritten()[0].input_ids, ids);

  // What ends an answer is part of what they are kept by.
  std::filesystem::remove(folder_ / "base/generation_config.json");
  EXPECT_EQ(rewritten()[0].input_ids, plain_[0].input_ids);
  folder_.write("base/generation_config.json", "{\"eos_token_id\": " + std::to_string(stop) + "}");

  // What says something else stays as the data has it.
  options_.sdft.match = data::AnswerMatch::contains;
  EXPECT_EQ(rewritten()[0].input_ids, plain_[0].input_ids);
}

// train_on_eos: none: the token that ends the data's answer is there, and is no label.
TEST_P(TrainSelfDistillation, AnEndThatIsNotLearnedIsNotLearned) {
  const auto texts = said();
  const std::int32_t stop = texts[0].back();
  ASSERT_NE(std::ranges::find(texts[0], stop), texts[0].begin()) << "nothing would be said before it";
  folder_.write("base/generation_config.json", "{\"eos_token_id\": " + std::to_string(stop) + "}");
  std::vector<ShownDocument> shown = {{.document = plain_[0], .prompt = prompts()[0]}};
  shown[0].document.labels.back() = ignore_label;
  ASSERT_EQ(Rewriter(options_).rewrite(shown, *engine(), options_.sequence_len, 0, console_), 1);
  const Document& document = shown[0].document;
  ASSERT_EQ(document.labels.size(), document.input_ids.size());
  EXPECT_EQ(document.input_ids.back(), data::ByteTokenizer::eos);
  EXPECT_EQ(document.labels.back(), ignore_label);
  EXPECT_EQ(*(document.labels.end() - 2), *(document.input_ids.end() - 2)) << "what it says is learned";
}

// For predictions it answers the prompt alone, and the prompt that shows the answer is what the teacher sees.
TEST_P(TrainSelfDistillation, RespondsToThePromptAndLeavesTheAnswerToTheTeacher) {
  options_.sdft.on_policy = true;
  options_.sdft.learn = options::SdftLearn::predictions;
  options_.sdft.temperature = 0;
  std::vector<std::vector<std::int32_t>> own;
  for (const Document& document : plain_) own.push_back(data::last_exchange(document)->prompt);
  const auto model = engine();
  const auto texts = generate(*model, own, {.count = options_.sdft.max_new_tokens});
  const auto responded = [&](std::int64_t longest) {
    std::vector<ShownDocument> shown;
    for (std::size_t i = 0; i < plain_.size(); ++i) shown.push_back({plain_[i], prompts()[i]});
    Rewriter(options_).respond(shown, *model, longest, 0, console_);
    return shown;
  };
  const auto whole = responded(options_.sequence_len);
  for (std::size_t i = 0; i < plain_.size(); ++i) {
    std::vector<std::int32_t> ids = own[i];
    ids.insert(ids.end(), texts[i].begin(), texts[i].end());  // which nothing ended
    EXPECT_EQ(whole[i].document.input_ids, ids) << i;
    for (std::size_t t = 0; t < ids.size(); ++t) {
      EXPECT_EQ(whole[i].document.labels[t], t < own[i].size() ? ignore_label : ids[t]) << i;
    }
    EXPECT_EQ(whole[i].document.others_prompt, prompts()[i]);
    // Cut where there is no more room.
    const auto most = std::ssize(own[i]) + 2;
    ids.resize(static_cast<std::size_t>(most));
    EXPECT_EQ(responded(most)[i].document.input_ids, ids) << i;
  }
  // A token that it does say ends its answer, as the data ends its own.
  const std::int32_t stop = texts[0][2];
  const auto end = std::ranges::find(texts[0], stop);
  folder_.write("base/generation_config.json", "{\"eos_token_id\": " + std::to_string(stop) + "}");
  std::vector<std::int32_t> ids = own[0];
  ids.insert(ids.end(), texts[0].begin(), end);
  ids.push_back(data::ByteTokenizer::eos);
  EXPECT_EQ(responded(options_.sequence_len)[0].document.input_ids, ids);
}

// Where it says nothing, that it ended is what there is to predict, also where the data's ends are not learned.
TEST_P(TrainSelfDistillation, AnAnswerOfNoTokensHasALabel) {
  options_.sdft.on_policy = true;
  options_.sdft.learn = options::SdftLearn::predictions;
  options_.sdft.temperature = 0;
  const std::vector<std::int32_t> own = data::last_exchange(plain_[0])->prompt;
  const auto model = engine();
  const std::int32_t first = generate(*model, own, {.count = 1})[0];
  folder_.write("base/generation_config.json", "{\"eos_token_id\": " + std::to_string(first) + "}");
  std::vector<ShownDocument> shown = {{plain_[0], prompts()[0]}};
  shown[0].document.labels.back() = ignore_label;  // train_on_eos: none
  Rewriter(options_).respond(shown, *model, options_.sequence_len, 0, console_);
  const Document& document = shown[0].document;
  ASSERT_EQ(document.input_ids.size(), own.size() + 1);
  EXPECT_EQ(document.labels.back(), data::ByteTokenizer::eos);
  EXPECT_EQ(pack(std::span(&document, 1)).valid_count(), 1);
}

// Of a conversation the last turn is answered; what is learned of earlier ones elsewhere is a part of its prompt here.
TEST_P(TrainSelfDistillation, OnlyTheLastTurnIsPredicted) {
  options_.sdft.on_policy = true;
  options_.sdft.learn = options::SdftLearn::predictions;
  std::vector<ShownDocument> shown = {{plain_[0], prompts()[0]}};
  Document& document = shown[0].document;
  const std::size_t own = data::last_exchange(document)->prompt.size();
  for (std::size_t i = 2; i < 5; ++i) document.labels[i] = document.input_ids[i];  // an earlier answer
  ASSERT_EQ(data::last_exchange(document)->prompt.size(), own);
  Rewriter(options_).respond(shown, *engine(), options_.sequence_len, 0, console_);
  for (std::size_t i = 0; i < document.labels.size(); ++i) {
    EXPECT_EQ(is_label(document.labels[i]), i >= own) << i;
  }
  const PackedBatch batch = pack(std::span(&document, 1));
  EXPECT_EQ(batch.others.at(0).token_count(),
            std::ssize(prompts()[0]) + std::ssize(document.input_ids) - static_cast<std::int64_t>(own));
}

// Another model sees what the model sees, and rows of tokens will do.
TEST_P(TrainSelfDistillation, ForAnotherTeacherNothingIsShown) {
  options_.sdft = {};
  options_.distillation = {.enabled = true,
                           .teacher = options_.base_model,
                           .on_policy = true,
                           .max_new_tokens = 6,
                           .sampling_temperature = 0};
  const RunData read = read_to_rewrite(options_, config_.vocab, console_);
  ASSERT_EQ(read.shown.size(), 2);
  std::vector<ShownDocument> shown = {apart(read.shown.read(0))};
  EXPECT_TRUE(shown[0].prompt.empty());
  EXPECT_EQ(shown[0].document.input_ids, plain_[0].input_ids);
  Rewriter(options_).respond(shown, *engine(), options_.sequence_len, 0, console_);
  const std::size_t own = data::last_exchange(plain_[0])->prompt.size();
  EXPECT_EQ(shown[0].document.input_ids.size(), own + 6);  // which nothing ended
  EXPECT_TRUE(shown[0].document.others_prompt.empty());
  EXPECT_TRUE(pack(std::span(&shown[0].document, 1)).others.empty());
  folder_.write("rows.jsonl", "{\"input_ids\": [1, 2, 3, 4], \"labels\": [-100, -100, 3, 4]}\n");
  EXPECT_EQ(read_to_rewrite(options_, config_.vocab, console_).train.size(), 1);
  folder_.write("rows.jsonl", "{\"text\": \"All of it.\"}\n");
  EXPECT_THAT(inlay::testing::user_error_of([&] { read_to_rewrite(options_, config_.vocab, console_); }),
              HasSubstr("kd_on_policy: none of the 1 documents has an answer"));
}

// Rows that leave no room for an answer would teach nothing.
TEST_P(TrainSelfDistillation, PromptsThatLeaveNoRoomAreLeftOutOfPredictions) {
  options_.sdft.on_policy = true;
  options_.sdft.learn = options::SdftLearn::predictions;
  std::vector<std::int64_t> lengths;
  for (const Document& document : plain_) lengths.push_back(std::ssize(data::last_exchange(document)->prompt));
  ASSERT_LT(lengths[0], lengths[1]);
  const auto kept = [&](std::int64_t length) {
    options_.sequence_len = length;
    return read_to_rewrite(options_, config_.vocab, console_);
  };
  EXPECT_EQ(kept(lengths[1] + 1).train.size(), 2);
  const RunData one = kept(lengths[1]);
  ASSERT_EQ(one.train.size(), 1);
  EXPECT_EQ(one.shown.size(), 1);
  EXPECT_EQ(one.train.read(0).input_ids, plain_[0].input_ids);
  EXPECT_THAT(inlay::testing::user_error_of([&] { kept(lengths[0]); }), HasSubstr("no prompt leaves room"));
}

// A chat template may end turns by a token that neither the tokenizer nor generation_config.json names.
TEST_P(TrainSelfDistillation, AnAnswerEndsAsTheDataEndsItsOwn) {
  constexpr std::int32_t end = data::ByteTokenizer::pad;  // a special token
  options_.sdft.max_new_tokens = 64;
  const std::vector<std::vector<std::int32_t>> asked = {prompts()[0]};
  const auto model = engine();
  std::vector<std::int32_t> words;
  std::uint64_t seed = 0;  // of an answer in which it is said, and said first
  for (; words.empty() && seed < 200; ++seed) {
    const auto text = generate(*model, asked,
                               {.count = options_.sdft.max_new_tokens - 1,
                                .stops = {data::ByteTokenizer::eos},
                                .drawing = {.temperature = 1.0f, .seed = seed}})[0];
    const auto at = std::ranges::find(text, end);
    if (at != text.begin() && at != text.end()) words.assign(text.begin(), at);
  }
  ASSERT_FALSE(words.empty());
  --seed;
  for (const bool learned : {true, false}) {  // train_on_eos
    std::vector<ShownDocument> shown = {{.document = plain_[0], .prompt = asked[0]}};
    Document& document = shown[0].document;
    document.input_ids.back() = end;
    document.labels.back() = learned ? end : ignore_label;
    document.input_ids.push_back('\n');  // as templates go on
    document.labels.push_back(ignore_label);
    std::vector<std::int32_t> ids = data::last_exchange(document)->prompt;
    ids.insert(ids.end(), words.begin(), words.end());
    ids.push_back(end);
    ASSERT_EQ(Rewriter(options_).rewrite(shown, *model, options_.sequence_len, seed, console_), 1);
    EXPECT_EQ(document.input_ids, ids);
    EXPECT_EQ(document.labels.back(), learned ? end : ignore_label);
  }
}

TEST_P(TrainSelfDistillation, AnswersAreKeptByAllThatTheyDependOn) {
  rewritten();
  rewritten();
  EXPECT_EQ(kept(), 1u);
  // How the model computes.
  const std::filesystem::path file = folder_ / "base/config.json";
  nlohmann::json config = nlohmann::json::parse(inlay::testing::read_text(file));
  config["rope_theta"] = 12345.0;
  folder_.write("base/config.json", config.dump());
  rewritten();
  EXPECT_EQ(kept(), 2u);
  options_.attention.score = "s + head_bias";
  for (const float bias : {0.5f, 0.25f}) {
    options_.attention.head_bias.assign(static_cast<std::size_t>(config_.heads), bias);
    config_ = config_of(options_);
    rewritten();
  }
  EXPECT_EQ(kept(), 4u);
  // An adapter that they begin with.
  options_.attention = {};
  config_ = config_of(options_);
  options_.adapter.model_dir = (folder_ / "adapter").string();
  for (const char* seed : {"1", "2"}) {
    std::filesystem::remove_all(options_.adapter.model_dir);
    const inlay::testing::CommandResult made = inlay::testing::inlay(
        {"train", folder_.write("run.yaml", "base_model: " + options_.base_model +
                                                "\noutput_dir: " + options_.adapter.model_dir +
                                                "\ndatasets: [{path: " + options_.datasets[0].path +
                                                "}]\nlearning_rate: 1.0e-3\nsequence_len: 512\nmax_steps: 1\n"
                                                "adapter: lora\nlora_r: 2\nlora_alpha: 2\nlora_target_linear: true\n"
                                                "dataset_prepared_path: off\ndevice: cpu\nseed: " +
                                                seed + "\n")});
    ASSERT_EQ(made.code, 0) << made.err;
    rewritten();
    rewritten();
  }
  EXPECT_EQ(kept(), 6u);
}

TEST_P(TrainSelfDistillation, RowsMustBePromptsWithAnswers) {
  folder_.write("rows.jsonl", "{\"text\": \"All of it.\"}\n");
  EXPECT_THAT(inlay::testing::user_error_of([&] { rewritten(); }),
              HasSubstr("sdft needs rows of a prompt and an answer"));
  folder_.write("rows.jsonl", "{\"input_ids\": [1, 2, 3]}\n");
  EXPECT_THAT(inlay::testing::user_error_of([&] { rewritten(); }),
              HasSubstr("has tokens, but sdft needs rows of texts"));
  // Nobody has asked for what is said.
  folder_.write("base/chat_template.jinja",
                "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                "{% if add_generation_prompt %}assistant: {% endif %}");
  folder_.write("rows.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"one\"}]}\n");
  const std::string none = "sdft: none of the 1 documents has an answer that the model could rewrite";
  EXPECT_THAT(inlay::testing::user_error_of([&] { rewritten(); }), HasSubstr(none));
  EXPECT_THAT(inlay::testing::user_error_of([&] { read_to_rewrite(options_, config_.vocab, console_); }),
              HasSubstr(none));
}

INSTANTIATE_TEST_SUITE_P(, TrainSelfDistillation, ::testing::ValuesIn(inlay::testing::devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::train
