#include "data/choices.h"

#include <string>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/line_reader.h"

namespace inlay::data {
namespace {

using nlohmann::json;

// One line of the file, and how its mistakes are told.
class Line {
 public:
  Line(const std::string& path, std::size_t line, std::string_view text) : where_(fmt::format("{}:{}", path, line)) {
    try {
      value_ = json::parse(text);
    } catch (const json::parse_error& error) {
      user_error("{}: column {}: not valid JSON", where_, error.byte);
    }
    if (!value_.is_object()) {
      user_error("{}: expected an object with \"input_ids\", \"choices\" and \"answer\" on every line", where_);
    }
  }

  const json& at(const char* key, std::string_view expected) const {
    const auto found = value_.find(key);
    if (found == value_.end() || found->is_null()) fail(key, fmt::format("missing, expected {}", expected));
    return *found;
  }

  std::vector<std::int32_t> ids(const json& array, const std::string& key, std::int64_t vocab_size) const {
    if (!array.is_array()) fail(key, "expected an array of token ids");
    if (array.empty()) fail(key, "is empty, expected at least one token");
    std::vector<std::int32_t> result;
    for (const json& element : array) {
      const std::string place = fmt::format("{}[{}]", key, result.size());
      if (!element.is_number_integer()) fail(place, "expected an integer, got " + element.dump());
      const auto id = element.get<std::int64_t>();
      if (id < 0 || id >= vocab_size) {
        fail(place, fmt::format("token id {} is outside the model's vocabulary, 0 to {}", id, vocab_size - 1));
      }
      result.push_back(static_cast<std::int32_t>(id));
    }
    return result;
  }

  [[noreturn]] void fail(std::string_view key, const std::string& message) const {
    user_error("{}: {}: {}", where_, key, message);
  }

 private:
  std::string where_;
  json value_;
};

Question make_question(const Line& line, std::int64_t vocab_size) {
  Question question;
  question.prompt = line.ids(line.at("input_ids", "an array of token ids"), "input_ids", vocab_size);
  const json& choices = line.at("choices", "an array of arrays of token ids");
  if (!choices.is_array()) line.fail("choices", "expected an array of arrays of token ids");
  if (choices.size() < 2) line.fail("choices", fmt::format("expected at least two, got {}", choices.size()));
  for (const json& choice : choices) {
    question.choices.push_back(line.ids(choice, fmt::format("choices[{}]", question.choices.size()), vocab_size));
  }
  const json& answer = line.at("answer", "the index of the right choice, from 0");
  const auto last = static_cast<std::int64_t>(choices.size()) - 1;
  const bool fits = answer.is_number_integer() && answer.get<std::int64_t>() >= 0 && answer.get<std::int64_t>() <= last;
  if (!fits) line.fail("answer", fmt::format("expected an index from 0 to {}, got {}", last, answer.dump()));
  question.answer = answer.get<std::int64_t>();
  return question;
}

}  // namespace

bool holds_choices(const std::filesystem::path& path) {
  LineReader reader(path);
  const auto text = reader.next();
  if (!text) return false;
  const json value = json::parse(*text, nullptr, false);
  return value.is_object() && value.contains("choices");
}

std::vector<Question> read_choices(const std::filesystem::path& path, std::int64_t vocab_size) {
  INLAY_ASSERT(vocab_size > 0, "a vocabulary of {} tokens", vocab_size);
  LineReader reader(path);
  std::vector<Question> questions;
  while (const auto text = reader.next()) {
    questions.push_back(make_question(Line(reader.path(), reader.line(), *text), vocab_size));
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
