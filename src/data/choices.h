#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/batch.h"

namespace inlay::data {

// A prompt with several continuations, one of which is right.
struct Question {
  std::vector<std::int32_t> prompt;
  std::vector<std::vector<std::int32_t>> choices;
  std::int64_t answer = 0;  // index of the right choice
};

// Whether the file's first line has "choices", and so is to be read as questions.
bool holds_choices(const std::filesystem::path& path);

// Reads questions, one JSON object a line: {"input_ids": [prompt], "choices": [[ids], [ids], ...], "answer": index}.
// Other keys are left alone, and so are blank lines. Every mistake is a UserError that reads
// `file:line: key: what is wrong`.
std::vector<Question> read_choices(const std::filesystem::path& path, std::int64_t vocab_size);

// One document a choice, question after question: the prompt without labels, then the choice with them.
std::vector<Document> choice_documents(const std::vector<Question>& questions);

}  // namespace inlay::data
