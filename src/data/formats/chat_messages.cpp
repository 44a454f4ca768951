#include "data/formats/chat_messages.h"

#include <algorithm>

#include "core/error.h"

namespace inlay::data {
namespace {

using io::Value;

// A copy in which one member is another.
Value with(Value object, std::string_view key, Value value) {
  *object.find(key) = std::move(value);
  return object;
}

Value parsed(const Row& text) { return io::read_value(text.text(), fmt::format("{}: {}", text.where(), text.path())); }

// {"function": {"arguments": "{...}"}} with the arguments as a value.
Value with_parsed_member(const Row& entry, std::string_view member) {
  if (!entry.is_object()) return entry.value();
  const auto function = entry.find("function");
  if (!function || !function->is_object()) return entry.value();
  const auto found = function->find(member);
  if (!found || !found->is_text()) return entry.value();
  return with(entry.value(), "function", with(function->value(), member, parsed(*found)));
}

Value with_parsed_members(const Row& entries, std::string_view member) {
  Value::List result;
  for (const Row& entry : entries.elements()) result.push_back(with_parsed_member(entry, member));
  return Value(std::move(result));
}

// Several texts become one; anything else that is not text cannot be learned from here.
Value content_for_template(const Row& content) {
  if (!content.is_list()) return content.value();
  std::string whole;
  for (const Row& part : content.elements()) {
    if (part.is_text()) {
      whole += part.text();
      continue;
    }
    const std::string type = part.at("type", "\"text\"").text();
    if (type != "text") part.fail(fmt::format("content of type '{}' is not supported, only text is", type));
    const auto text = part.find("text");
    whole += text ? text->text() : part.at("value", "the text").text();
  }
  return Value(std::move(whole));
}

Value member_for_template(std::string_view key, const Row& member) {
  if (key == "content") return content_for_template(member);
  if (key == "tool_calls" && member.is_list()) return with_parsed_members(member, "arguments");
  return member.value();
}

}  // namespace

Value message_for_template(const Row& message, const std::map<std::string, std::string>& mappings,
                           const std::vector<std::string>& skip) {
  Value result{Value::Map()};
  const auto set = [&](const std::string& key, const Row& member) {
    Value* old = result.find(key);
    Value& place = old != nullptr ? *old : result.map()->emplace_back(Value::Member{key, {}}).value;
    place = member_for_template(key, member);
  };
  std::vector<std::string> used = skip;
  for (const auto& [key, source] : mappings) {
    used.push_back(source);
    if (const auto found = message.find(source)) set(key, *found);
  }
  for (const auto& [key, value] : *message.value().map()) {
    if (!value.is_null() && std::ranges::find(used, key) == used.end()) set(key, *message.find(key));
  }
  return result;
}

bool lacks_content(const jinja::Value& message) { return message.dict()->find("content") == nullptr; }

jinja::Value with_empty_content(const jinja::Value& message) {
  jinja::Dict dict;
  for (const auto& [key, value] : message.dict()->entries()) dict.set(nullptr, key, value);
  dict.set(nullptr, jinja::make_string(nullptr, "content"), jinja::make_string(nullptr, ""));
  return jinja::make_dict(nullptr, std::move(dict));
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view space = " \t\r\n\v\f";
  const std::size_t begin = std::min(text.find_first_not_of(space), text.size());
  return text.substr(begin, text.find_last_not_of(space) + 1 - begin);
}

std::string_view reasoning_of(const jinja::Value& message) {
  const auto text = [&](std::string_view key) {
    const jinja::Value* member = message.dict()->find(key);
    return member != nullptr && member->string() != nullptr ? std::string_view(member->string()->text) : "";
  };
  for (const char* key : {"reasoning_content", "reasoning", "thinking"}) {
    if (const std::string_view found = trimmed(text(key)); !found.empty()) return found;
  }
  std::string_view thoughts = text("content");
  const std::size_t end = thoughts.find("</think>");
  if (end == thoughts.npos) return "";
  thoughts = trimmed(thoughts.substr(0, end));
  constexpr std::string_view opening = "<think>";
  return trimmed(thoughts.substr(thoughts.starts_with(opening) ? opening.size() : 0));
}

Value tools_for_template(const Row& tools) {
  if (!tools.is_text()) return with_parsed_members(tools, "parameters");
  const Value list = parsed(tools);
  return with_parsed_members(Row(list, tools.where()), "parameters");
}

}  // namespace inlay::data
