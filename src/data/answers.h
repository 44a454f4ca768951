#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/batch.h"

// Answers to prompts: out of documents, and whether one says what another says.
namespace inlay::data {

// A prompt, and what is to follow it.
struct Exchange {
  std::vector<std::int32_t> prompt, answer;
};

// The last thing that a document teaches to say, with everything before it as the prompt: of a conversation the last
// turn that is learned, of the other types the answer. Nothing where there is no label, or nothing before it.
std::optional<Exchange> last_exchange(const Document& document);

// whole: the two are the same; contains: the reference stands in the answer (an empty one stands in none); number:
// their last numbers are equal.
enum class AnswerMatch : std::uint8_t { whole, contains, number };
inline constexpr std::string_view match_names = "one of whole, contains, number";
std::optional<AnswerMatch> parse_match(std::string_view text);
std::string_view name_of(AnswerMatch match);

struct AnswerRule {
  AnswerMatch match = AnswerMatch::whole;
  std::string marker = {};  // of both texts only what follows the last of these counts; empty: all

  bool operator==(const AnswerRule&) const = default;
};

// Whether an answer says what the reference does. Case, white space (any is one space), signs around the text and
// commas between thousands do not count.
bool agrees(std::string_view answer, std::string_view reference, const AnswerRule& rule);
// Whether a rule can be applied to a reference at all: it has the marker, and a number or a text where one is needed.
bool is_judged_by(std::string_view reference, const AnswerRule& rule);

}  // namespace inlay::data
