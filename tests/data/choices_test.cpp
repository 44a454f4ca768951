#include "data/choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/files.h"

namespace inlay::data {
namespace {

using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string error_of_choices(std::string_view text) {
  const TempFolder folder;
  const auto path = folder.write("q.jsonl", text);
  return user_error_of([&] { read_choices(path, 10); });
}

TEST(DataChoices, ReadsQuestions) {
  const TempFolder folder;
  const auto path = folder.write("q.jsonl", R"({"input_ids": [1, 2], "choices": [[3], [4, 5], [6]], "answer": 1}

{"answer": 0, "choices": [[9], [0]], "input_ids": [7], "id": "x"}
)");
  EXPECT_TRUE(holds_choices(path));
  const auto questions = read_choices(path, 10);
  ASSERT_EQ(questions.size(), 2u);
  EXPECT_THAT(questions[0].prompt, ElementsAre(1, 2));
  EXPECT_THAT(questions[0].choices, ElementsAre(ElementsAre(3), ElementsAre(4, 5), ElementsAre(6)));
  EXPECT_EQ(questions[0].answer, 1);
  EXPECT_EQ(questions[1].answer, 0);

  const auto documents = choice_documents(questions);
  ASSERT_EQ(documents.size(), 5u);
  EXPECT_THAT(documents[1].input_ids, ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(documents[1].labels, ElementsAre(ignore_label, ignore_label, 4, 5));
  EXPECT_THAT(documents[4].input_ids, ElementsAre(7, 0));
}

TEST(DataChoices, DocumentsAreNoQuestions) {
  const TempFolder folder;
  EXPECT_FALSE(holds_choices(folder.write("d.jsonl", "\n{\"input_ids\": [1, 2]}\n")));
  EXPECT_FALSE(holds_choices(folder.write("e.jsonl", "")));
  EXPECT_FALSE(holds_choices(folder.write("f.jsonl", "no JSON\n")));
}

TEST(DataChoices, ErrorsNameLineAndKey) {
  const std::string good = "{\"input_ids\": [1], \"choices\": [[2], [3]], \"answer\": 0}\n\n";
  EXPECT_THAT(error_of_choices(good + "{\"input_ids\""), HasSubstr("q.jsonl:3: not valid JSON: column 13: "));
  EXPECT_THAT(error_of_choices(good + "[1]"),
              EndsWith("q.jsonl:3: expected an object with \"input_ids\", \"choices\" and \"answer\" on every line"));
  EXPECT_THAT(error_of_choices(R"({"choices": [[2], [3]], "answer": 0})"),
              EndsWith("q.jsonl:1: input_ids: missing, expected an array of token ids"));
  EXPECT_THAT(error_of_choices(R"({"input_ids": [], "choices": [[2], [3]], "answer": 0})"),
              EndsWith("input_ids: is empty, expected at least one token"));
  EXPECT_THAT(error_of_choices(R"({"input_ids": [1], "answer": 0})"),
              EndsWith("choices: missing, expected an array of arrays of token ids"));
  EXPECT_THAT(error_of_choices(R"({"input_ids": [1], "choices": [[2]], "answer": 0})"),
              EndsWith("choices: expected at least two, got 1"));
  EXPECT_THAT(error_of_choices(R"({"input_ids": [1], "choices": [2, 3], "answer": 0})"),
              EndsWith("choices[0]: expected an array of token ids"));
  EXPECT_THAT(error_of_choices(R"({"input_ids": [1], "choices": [[2], []], "answer": 0})"),
              EndsWith("choices[1]: is empty, expected at least one token"));
  EXPECT_THAT(error_of_choices(R"({"input_ids": [1], "choices": [[2], [3, 10]], "answer": 0})"),
              EndsWith("choices[1][1]: token id 10 is outside the model's vocabulary, 0 to 9"));
  EXPECT_THAT(error_of_choices(R"({"input_ids": [1], "choices": [[2], ["x"]], "answer": 0})"),
              EndsWith("choices[1][0]: expected an integer, got \"x\""));
  EXPECT_THAT(error_of_choices(R"({"input_ids": [1], "choices": [[2], [3]]})"),
              EndsWith("answer: missing, expected the index of the right choice, from 0"));
  for (const char* answer : {"2", "-1", "0.5", "\"A\""}) {
    EXPECT_THAT(error_of_choices(fmt::format(R"({{"input_ids": [1], "choices": [[2], [3]], "answer": {}}})", answer)),
                EndsWith(fmt::format("answer: expected an index from 0 to 1, got {}", answer)));
  }
  EXPECT_THAT(error_of_choices("\n"), EndsWith("q.jsonl: holds no questions"));
}

}  // namespace
}  // namespace inlay::data
