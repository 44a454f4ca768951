#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/formats/format.h"
#include "support/chat_model.h"

namespace inlay::data {
namespace {

using inlay::testing::ChatModel;
using inlay::testing::user_error_of;
using ::testing::HasSubstr;

struct Sequence {
  SequenceRole role;
  std::string text, learned;
};

std::vector<Sequence> make_pair_of(const std::string& row, FormatOptions options = {.type = "preference"}) {
  const ChatModel model;
  const Tokenizer tokenizer = Tokenizer::load(model.path());
  const io::Value value = io::read_value(row, "r:1");
  const Document document = make_format(options, tokenizer, model.path())->make(Row(value, "r:1"));
  std::vector<Sequence> result;
  std::vector<std::int32_t> text, learned;
  const auto close = [&] {
    if (result.empty()) return;
    result.back().text = tokenizer.decode(text, false);
    result.back().learned = tokenizer.decode(learned, false);
    text.clear();
    learned.clear();
  };
  for (std::size_t i = 0; i < document.labels.size(); ++i) {
    if (marks_sequence(document.labels[i])) {
      close();
      result.push_back({marked_role(document.labels[i]), "", ""});
    }
    text.push_back(document.input_ids[i]);
    if (is_label(document.labels[i])) learned.push_back(document.input_ids[i]);
  }
  close();
  return result;
}

TEST(DataPreferenceFormat, TextsAreTwoSequencesWhoseAnswersAreLearned) {
  const auto sequences = make_pair_of(R"({"prompt": "Q: 1+1? A:", "chosen": " 2", "rejected": " three"})");
  ASSERT_EQ(sequences.size(), 2u);
  EXPECT_EQ(sequences[0].role, SequenceRole::chosen);
  EXPECT_EQ(sequences[0].text, "Q: 1+1? A: 2<|im_end|>");
  EXPECT_EQ(sequences[0].learned, " 2<|im_end|>");
  EXPECT_EQ(sequences[1].role, SequenceRole::rejected);
  EXPECT_EQ(sequences[1].learned, " three<|im_end|>");
}

// The prompt is named, or is what both begin with, or are messages beside them: the same document.
TEST(DataPreferenceFormat, ConversationsAreRenderedByTheTemplate) {
  const std::string user = R"({"role": "user", "content": "Hi"})",
                    good = R"({"role": "assistant", "content": "Hello."})",
                    bad = R"({"role": "assistant", "content": "What?"})";
  const std::string rows[] = {
      R"({"prompt": [)" + user + R"(], "chosen": [)" + good + R"(], "rejected": [)" + bad + "]}",
      R"({"chosen": [)" + user + "," + good + R"(], "rejected": [)" + user + "," + bad + "]}",
      R"({"messages": [)" + user + R"(], "chosen": )" + good + R"(, "rejected": )" + bad + "}"};
  for (const std::string& row : rows) {
    const auto sequences = make_pair_of(row);
    ASSERT_EQ(sequences.size(), 2u) << row;
    EXPECT_EQ(sequences[0].text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n") << row;
    EXPECT_EQ(sequences[0].learned, "Hello.<|im_end|>") << row;
    EXPECT_EQ(sequences[1].learned, "What?<|im_end|>") << row;
  }
}

TEST(DataPreferenceFormat, JudgedAnswersSayWhatTheyAre) {
  const FormatOptions options{.type = "judged"};
  const auto good = make_pair_of(R"({"prompt": "Q", "completion": "A", "label": true})", options);
  const auto bad = make_pair_of(R"({"prompt": "Q", "completion": "B", "label": false})", options);
  ASSERT_EQ(good.size(), 1u);
  EXPECT_EQ(good[0].role, SequenceRole::desirable);
  EXPECT_EQ(bad[0].role, SequenceRole::undesirable);
  EXPECT_EQ(bad[0].learned, "B<|im_end|>");
}

TEST(DataPreferenceFormat, LongSequencesAreCutLeftOutOrRefused) {
  const std::string row = R"({"prompt": "abc", "chosen": "defgh", "rejected": "i"})";
  const auto cut = make_pair_of(row, {.type = "preference", .most_tokens = 5});
  EXPECT_EQ(cut[0].text, "abcde");
  EXPECT_EQ(cut[1].text, "abci<|im_end|>");
  EXPECT_TRUE(make_pair_of(row, {.type = "preference", .most_tokens = 5, .longer = Longer::leave_out}).empty());
  EXPECT_THAT(
      user_error_of([&] { make_pair_of(row, {.type = "preference", .most_tokens = 5, .longer = Longer::raise}); }),
      HasSubstr("r:1: prompt and answer have 9 tokens, sequence_len is 5"));
  EXPECT_THAT(user_error_of([&] { make_pair_of(row, {.type = "preference", .most_tokens = 3}); }),
              HasSubstr("nothing of an answer is left"));
}

// ORPO learns the prompts of chosen answers too; they weigh nothing in the answer's log-probability.
TEST(DataPreferenceFormat, PromptsHaveLabelsWhereTheyAreLearned) {
  const auto sequences = make_pair_of(R"({"prompt": "abc", "chosen": "d", "rejected": "e"})",
                                      {.type = "preference", .learns_prompts = true});
  EXPECT_EQ(sequences[0].learned, "bcd<|im_end|>");
  EXPECT_EQ(sequences[1].learned, "e<|im_end|>");
}

// There is nothing to prefer in two answers that are the same: of texts as of conversations, of all or of what is left.
TEST(DataPreferenceFormat, TiesAreLeftOut) {
  const std::string turns = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  EXPECT_TRUE(make_pair_of(R"({"prompt": "abc", "chosen": "d", "rejected": "d"})").empty());
  EXPECT_TRUE(make_pair_of(R"({"chosen": )" + turns + R"(, "rejected": )" + turns + "}").empty());
  EXPECT_TRUE(make_pair_of(R"({"prompt": "c", "chosen": )" + turns + R"(, "rejected": )" + turns + "}").empty());
  const std::string late = R"({"prompt": "abc", "chosen": "ddd", "rejected": "dde"})";
  EXPECT_TRUE(make_pair_of(late, {.type = "preference", .most_tokens = 5}).empty());
  EXPECT_EQ(make_pair_of(late, {.type = "preference", .most_tokens = 6}).size(), 2u);
  // But not where the chosen one is learned by itself.
  EXPECT_EQ(make_pair_of(R"({"prompt": "abc", "chosen": "d", "rejected": "d"})",
                         {.type = "preference", .learns_chosen = true})
                .size(),
            2u);
}

TEST(DataPreferenceFormat, MistakesNameTheKey) {
  EXPECT_THAT(user_error_of([] { make_pair_of(R"({"prompt": "a", "chosen": "b"})"); }), HasSubstr("rejected"));
  EXPECT_THAT(user_error_of([] {
                make_pair_of(
                    R"({"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                "rejected": [{"role": "user", "content": "a"}]})");
              }),
              HasSubstr("do not differ"));
}

}  // namespace
}  // namespace inlay::data
