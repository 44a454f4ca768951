#include "data/choices.h"

#include <string>

#include "core/error.h"
#include "data/formats/row.h"
#include "data/line_reader.h"

namespace inlay::data {
namespace {

std::vector<std::int32_t> ids_of(const Row& row, std::int64_t vocab_size) {
  if (!row.is_list()) row.fail("expected an array of token ids");
  if (row.value().list()->empty()) row.fail("is empty, expected at least one token");
  std::vector<std::int32_t> ids;
  for (const Row& element : row.elements()) {
    const io::Integer* id = element.value().integer();
    if (id == nullptr) element.fail_expected("an integer");
    if (*id < 0 || *id >= vocab_size) {
      element.fail(fmt::format("token id {} is outside the model's vocabulary, 0 to {}", *id, vocab_size - 1));
    }
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return ids;
}

Question make_question(const Row& row, std::int64_t vocab_size) {
  if (!row.is_object()) row.fail("expected an object with \"input_ids\", \"choices\" and \"answer\" on every line");
  Question question;
  question.prompt = ids_of(row.at("input_ids", "an array of token ids"), vocab_size);
  const Row choices = row.at("choices", "an array of arrays of token ids");
  if (!choices.is_list()) choices.fail("expected an array of arrays of token ids");
  for (const Row& choice : choices.elements()) question.choices.push_back(ids_of(choice, vocab_size));
  if (question.choices.size() < 2) choices.fail(fmt::format("expected at least two, got {}", question.choices.size()));
  const Row answer = row.at("answer", "the index of the right choice, from 0");
  const auto last = static_cast<std::int64_t>(question.choices.size()) - 1;
  const io::Integer* index = answer.value().integer();
  if (index == nullptr || *index < 0 || *index > last) answer.fail_expected(fmt::format("an index from 0 to {}", last));
  question.answer = static_cast<std::int64_t>(*index);
  return question;
}

}  // namespace

bool holds_choices(const std::filesystem::path& path) {
  LineReader reader(path);
  const auto text = reader.next();
  if (!text) return false;
  try {
    return io::read_value(*text, path.string()).find("choices") != nullptr;
  } catch (const UserError&) {
    return false;  // whoever reads it will say so
  }
}

std::vector<Question> read_choices(const std::filesystem::path& path, std::int64_t vocab_size) {
  INLAY_ASSERT(vocab_size > 0, "a vocabulary of {} tokens", vocab_size);
  LineReader reader(path);
  std::vector<Question> questions;
  while (const auto text = reader.next()) {
    const std::string where = fmt::format("{}:{}", reader.path(), reader.line());
    const io::Value value = io::read_value(*text, where);
    questions.push_back(make_question(Row(value, where), vocab_size));
  }
  if (questions.empty()) user_error("{}: holds no questions", reader.path());
  return questions;
}

std::vector<Document> choice_documents(const std::vector<Question>& questions) {
  std::vector<Document> documents;
  for (const Question& question : questions) {
    for (const std::vector<std::int32_t>& choice : question.choices) {
      Document document{.input_ids = question.prompt, .labels = {}};
      document.labels.assign(question.prompt.size(), ignore_label);
      document.input_ids.insert(document.input_ids.end(), choice.begin(), choice.end());
      document.labels.insert(document.labels.end(), choice.begin(), choice.end());
      documents.push_back(std::move(document));
    }
  }
  return documents;
}

}  // namespace inlay::data
