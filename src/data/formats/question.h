#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/formats/format.h"

// What rows of a question and its answer, as texts, have around the question.
namespace inlay::data {

// A system message beside the rest: under field_system, or system_prompt (OpenOrca). Nothing where it is empty.
std::optional<Row> find_system(const Row& row, const FormatOptions& options);

// What the question is about: under field_input, or a text under context (Dolly). Nothing where it is empty, or where
// that is the question's own name.
std::optional<Row> find_input(const Row& row, const FormatOptions& options, std::string_view question);

// A question and what it is about, as one text.
std::string with_input(const std::string& question, const std::optional<Row>& input);

// What was asked and answered before, as LLaMA-Factory has it: {"history": [[question, answer], ...]}. A `history` that
// is no list of lists is something else.
std::vector<std::pair<Row, Row>> earlier_turns(const Row& row);

// The keys of what belongs to a question and is there, but for those that are read.
std::vector<std::string> unread_around(const Row& row, const std::vector<std::string>& read);

// A message as templates want it.
io::Value message_of(const char* role, io::Value content);

}  // namespace inlay::data
