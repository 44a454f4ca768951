#include "data/formats/question.h"

#include <algorithm>
#include <array>

namespace inlay::data {
namespace {

constexpr std::array<std::string_view, 10> around = {"context", "input",    "history",   "system",     "system_prompt",
                                                     "passage", "document", "documents", "background", "article"};

bool is_empty(const Row& value) {
  if (value.is_list()) return value.value().list()->empty();
  return value.is_text() && value.text().empty();
}

std::optional<Row> unless_empty(std::optional<Row> found) { return found && is_empty(*found) ? std::nullopt : found; }

}  // namespace

std::optional<Row> find_system(const Row& row, const FormatOptions& options) {
  auto found = unless_empty(row.find(options.field_system));
  return found || options.field_system != "system" ? found : unless_empty(row.find("system_prompt"));
}

std::optional<Row> find_input(const Row& row, const FormatOptions& options, std::string_view question) {
  if (options.field_input != question) {
    if (auto found = unless_empty(row.find(options.field_input))) return found;
  }
  if (options.field_input != "input" || question == "context") return std::nullopt;
  auto context = unless_empty(row.find("context"));
  return context && context->is_text() ? context : std::nullopt;
}

std::string with_input(const std::string& question, const std::optional<Row>& input) {
  return input ? question + "\n" + input->text() : question;
}

std::vector<std::pair<Row, Row>> earlier_turns(const Row& row) {
  std::vector<std::pair<Row, Row>> turns;
  const auto history = row.find("history");
  if (!history || !history->is_list() || history->value().list()->empty() || !history->element(0).is_list()) {
    return turns;
  }
  for (const Row& turn : history->elements()) {
    if (!turn.is_list() || turn.value().list()->size() != 2) turn.fail_expected("a question and its answer");
    turns.emplace_back(turn.element(0), turn.element(1));
    turns.back().first.text();
    turns.back().second.text();
  }
  return turns;
}

std::vector<std::string> unread_around(const Row& row, const std::vector<std::string>& read) {
  std::vector<std::string> unread;
  for (const io::Value::Member& member : *row.value().map()) {
    const auto found = row.find(member.key);
    if (!found || is_empty(*found) || std::ranges::find(around, member.key) == around.end()) continue;
    if (std::ranges::find(read, member.key) == read.end()) unread.push_back(member.key);
  }
  return unread;
}

io::Value message_of(const char* role, io::Value content) {
  return io::Value(io::Value::Map{{"role", io::Value(std::string(role))}, {"content", std::move(content)}});
}

}  // namespace inlay::data
