#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <yaml-cpp/yaml.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "options/train_options.h"

// The kinds of keys that the configuration has: how a value of each is read, checked, written and described.
namespace inlay::options::option {

// Where a value came from, for messages: "run.yaml, line 4: learning_rate".
struct Place {
  std::string file;
  int line = 0;  // 0: it has none, as on a command line
  std::string key;

  std::string where() const { return line > 0 ? fmt::format("{}, line {}", file, line) : file; }
  // Of a key below this one.
  Place within(const YAML::Node& name, std::string below) const {
    return {file, line > 0 ? name.Mark().line + 1 : 0, std::move(below)};
  }

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("{}: {}: {}", where(), key, fmt::format(format, std::forward<Args>(args)...));
  }
};

// Numbers as YAML 1.1 has them, which is what axolotl reads: 1_000 is 1000.
template <class Number>
bool read_number(const YAML::Node& node, Number& value) {
  std::string text = node.Scalar();
  if (!text.empty() && text.find_first_not_of("0123456789_.eE+-") == text.npos && text.front() != '_') {
    std::erase(text, '_');
  }
  return YAML::convert<Number>::decode(YAML::Node(text), value);
}

inline std::string text_of(const YAML::Node& node, const Place& place, std::string_view expected) {
  if (node.IsNull()) place.fail("expected {}, got nothing", expected);
  if (!node.IsScalar()) place.fail("expected {}, got a {}", expected, node.IsMap() ? "map" : "list");
  return node.Scalar();
}

using Schema = nlohmann::ordered_json;  // of a value, as JSON Schema

struct Field {
  std::string name, type, meaning;
  std::function<void(TrainOptions&, const YAML::Node&, const Place&)> set;
  std::function<void(const TrainOptions&, YAML::Emitter&)> emit;
  Schema schema;
};

// A member is a pointer to one, or a function that gives a reference to it.
template <class Member>
Field integer(std::string name, Member member, std::int64_t least, std::string meaning) {
  return {name,
          fmt::format("integer ≥ {}", least),
          std::move(meaning),
          [member, least](TrainOptions& o, const YAML::Node& node, const Place& place) {
            const std::string expected = fmt::format("an integer of at least {}", least);
            const std::string text = text_of(node, place, expected);
            std::int64_t value = 0;
            if (!read_number(node, value) || value < least) {
              place.fail("expected {}, got '{}'", expected, text);
            }
            std::invoke(member, o) = value;
          },
          [member](const TrainOptions& o, YAML::Emitter& out) { out << std::invoke(member, o); },
          {{"type", "integer"}, {"minimum", least}}};
}

template <class Member>
Field number(std::string name, Member member, double least, double most, std::string meaning) {
  const bool bounded = most < std::numeric_limits<double>::infinity();
  const std::string range = bounded ? fmt::format("from {} to {}", least, most) : fmt::format("of at least {}", least);
  return {name,
          "number " + range,
          std::move(meaning),
          [member, least, most, range](TrainOptions& o, const YAML::Node& node, const Place& place) {
            const std::string text = text_of(node, place, "a number " + range);
            double value = 0;
            if (!read_number(node, value) || !(value >= least && value <= most)) {
              place.fail("expected a number {}, got '{}'", range, text);
            }
            std::invoke(member, o) = value;
          },
          [member](const TrainOptions& o, YAML::Emitter& out) { out << fmt::format("{}", std::invoke(member, o)); },
          bounded ? Schema{{"type", "number"}, {"minimum", least}, {"maximum", most}}
                  : Schema{{"type", "number"}, {"minimum", least}}};
}

// A number of steps, or a share of the run below 1, which is kept apart.
inline Field steps_or_share(std::string name, std::int64_t TrainOptions::*steps, double TrainOptions::*share,
                            std::string meaning) {
  const std::string expected = "a whole number of steps, or a share of the run below 1";
  return {std::move(name),
          "integer ≥ 0, or a share below 1",
          std::move(meaning),
          [=](TrainOptions& o, const YAML::Node& node, const Place& place) {
            const std::string text = text_of(node, place, expected);
            double value = 0;
            const bool read = read_number(node, value) && value >= 0 && value < 1e15;
            if (!read || (value >= 1 && value != std::floor(value)))
              place.fail("expected {}, got '{}'", expected, text);
            o.*steps = value >= 1 ? static_cast<std::int64_t>(value) : 0;
            if (value < 1 && value > 0) o.*share = value;
          },
          [=](const TrainOptions& o, YAML::Emitter& out) {
            out << (o.*steps == 0 && o.*share > 0 ? fmt::format("{}", o.*share) : fmt::format("{}", o.*steps));
          },
          {{"anyOf",
            {{{"type", "integer"}, {"minimum", 0}},
             {{"type", "number"}, {"exclusiveMinimum", 0}, {"exclusiveMaximum", 1}}}}}};
}

// A list of numbers.
template <class Member>
Field numbers(std::string name, Member member, std::string meaning) {
  return {name,
          "list of numbers",
          std::move(meaning),
          [member](TrainOptions& o, const YAML::Node& node, const Place& place) {
            auto& list = std::invoke(member, o);
            using Number = typename std::decay_t<decltype(list)>::value_type;
            list.clear();
            if (!node.IsSequence()) place.fail("expected a list of numbers");
            for (const auto& entry : node) {
              Number value{};
              if (!YAML::convert<Number>::decode(entry, value) || !std::isfinite(value)) {
                place.fail("expected a list of numbers, got '{}' in it", entry.IsScalar() ? entry.Scalar() : "a list");
              }
              list.push_back(value);
            }
          },
          [member](const TrainOptions& o, YAML::Emitter& out) {
            out << YAML::Flow << YAML::BeginSeq;
            for (const auto value : std::invoke(member, o)) out << fmt::format("{}", value);
            out << YAML::EndSeq;
          },
          {{"type", "array"}, {"items", {{"type", "number"}}}}};
}

// A number, or auto.
template <class Member>
Field or_auto(std::string name, Member member, double least, std::string meaning) {
  return {name,
          fmt::format("auto or a number of at least {}", least),
          std::move(meaning),
          [member, least](TrainOptions& o, const YAML::Node& node, const Place& place) {
            using Number = typename std::decay_t<decltype(std::invoke(member, o))>::value_type;
            const std::string expected = fmt::format("auto or a number of at least {}", least);
            const std::string text = text_of(node, place, expected);
            std::invoke(member, o).reset();
            if (text == "auto") return;
            Number value{};
            if (!read_number(node, value) || !(static_cast<double>(value) >= least)) {
              place.fail("expected {}, got '{}'", expected, text);
            }
            std::invoke(member, o) = value;
          },
          [member](const TrainOptions& o, YAML::Emitter& out) {
            const auto& value = std::invoke(member, o);
            out << (value ? fmt::format("{}", *value) : std::string("auto"));
          },
          {{"anyOf", {{{"const", "auto"}}, {{"type", "number"}, {"minimum", least}}}}}};
}

template <class Member>
Field boolean(std::string name, Member member, std::string meaning) {
  return {name,
          "true or false",
          std::move(meaning),
          [member](TrainOptions& o, const YAML::Node& node, const Place& place) {
            const std::string text = text_of(node, place, "true or false");
            bool value = false;
            if (!YAML::convert<bool>::decode(node, value)) place.fail("expected true or false, got '{}'", text);
            std::invoke(member, o) = value;
          },
          [member](const TrainOptions& o, YAML::Emitter& out) { out << std::invoke(member, o); },
          {{"type", "boolean"}}};
}

template <class Member>
Field text(std::string name, Member member, std::string type, std::string meaning) {
  return {name,
          std::move(type),
          std::move(meaning),
          [member](TrainOptions& o, const YAML::Node& node, const Place& place) {
            std::invoke(member, o) = text_of(node, place, "text");
            if (std::invoke(member, o).empty()) place.fail("expected text, got nothing");
          },
          [member](const TrainOptions& o, YAML::Emitter& out) { out << YAML::DoubleQuoted << std::invoke(member, o); },
          {{"type", "string"}, {"minLength", 1}}};
}

// Text that may be empty.
template <class Member>
Field optional_text(std::string name, Member member, std::string type, std::string meaning) {
  Field field = text(std::move(name), member, std::move(type), std::move(meaning));
  field.set = [member](TrainOptions& o, const YAML::Node& node, const Place& place) {
    std::invoke(member, o) = text_of(node, place, "text");
  };
  field.schema = {{"type", "string"}};
  return field;
}

// A word that stands for a value: past this table nobody compares words.
template <class Member>
using ValueOf = std::decay_t<std::invoke_result_t<Member, TrainOptions&>>;

template <class Member>
Field choice(std::string name, Member member, std::vector<std::pair<std::string, ValueOf<Member>>> choices,
             std::string meaning) {
  std::string list;
  std::vector<std::string> words;
  for (const auto& [word, value] : choices) {
    list += (list.empty() ? "" : ", ") + word;
    words.push_back(word);
  }
  return {name,
          "one of " + list,
          std::move(meaning),
          [member, choices, list](TrainOptions& o, const YAML::Node& node, const Place& place) {
            const std::string given = text_of(node, place, "one of " + list);
            for (const auto& [word, value] : choices) {
              if (word != given) continue;
              std::invoke(member, o) = value;
              return;
            }
            place.fail("expected one of {}, got '{}'", list, given);
          },
          [member, choices](const TrainOptions& o, YAML::Emitter& out) {
            const auto found = std::find_if(choices.begin(), choices.end(),
                                            [&](const auto& pair) { return pair.second == std::invoke(member, o); });
            INLAY_ASSERT(found != choices.end(), "a value without a word");
            out << found->first;
          },
          {{"enum", words}}};
}

// A word that stays one.
template <class Member>
Field word(std::string name, Member member, const std::vector<std::string>& words, std::string meaning) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& w : words) pairs.emplace_back(w, w);
  return choice(std::move(name), member, std::move(pairs), std::move(meaning));
}

// One value, or a list of such.
inline Schema one_or_list(const Schema& one) { return {{"anyOf", {one, {{"type", "array"}, {"items", one}}}}}; }

inline Schema share_schema() { return {{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", 1}}; }

// The entries of a list; one alone will do without brackets.
inline std::vector<std::string> entries_of(const YAML::Node& node, const Place& place, const std::string& expected) {
  std::vector<std::string> entries;
  if (node.IsSequence()) {
    for (const auto& entry : node) entries.push_back(text_of(entry, place, expected));
  } else {
    entries.push_back(text_of(node, place, expected));
  }
  return entries;
}

// A list of words out of a few.
template <class Member>
Field words(std::string name, Member member, std::vector<std::string> choices, std::string meaning) {
  std::string list;
  for (const std::string& c : choices) list += (list.empty() ? "" : ", ") + c;
  return {name,
          "list of " + list,
          std::move(meaning),
          [member, choices, list](TrainOptions& o, const YAML::Node& node, const Place& place) {
            std::invoke(member, o) = entries_of(node, place, "a list of " + list);
            for (const std::string& word : std::invoke(member, o)) {
              if (std::find(choices.begin(), choices.end(), word) == choices.end()) {
                place.fail("expected some of {}, got '{}'", list, word);
              }
            }
          },
          [member](const TrainOptions& o, YAML::Emitter& out) { out << YAML::Flow << std::invoke(member, o); },
          one_or_list({{"enum", choices}})};
}

// A list of texts of any kind, none twice.
template <class Member>
Field texts(std::string name, Member member, std::string type, std::string meaning) {
  return {name,
          type,
          std::move(meaning),
          [member, type](TrainOptions& o, const YAML::Node& node, const Place& place) {
            const std::vector<std::string> entries = entries_of(node, place, type);
            std::set<std::string> seen;
            for (const std::string& entry : entries) {
              if (entry.empty()) place.fail("expected {}, got nothing", type);
              if (!seen.insert(entry).second) place.fail("'{}' is given twice", entry);
            }
            if (entries.empty()) place.fail("expected {}, got nothing", type);
            std::invoke(member, o) = entries;
          },
          [member](const TrainOptions& o, YAML::Emitter& out) {
            const std::vector<std::string>& entries = std::invoke(member, o);
            if (entries.size() != 1) out << YAML::Flow << YAML::BeginSeq;
            for (const std::string& entry : entries) out << YAML::DoubleQuoted << entry;
            if (entries.size() != 1) out << YAML::EndSeq;
          },
          one_or_list({{"type", "string"}, {"minLength", 1}})};
}

// The same, or none at all.
template <class Member>
Field optional_texts(std::string name, Member member, std::string type, std::string meaning) {
  Field field = texts(std::move(name), member, std::move(type), std::move(meaning));
  field.set = [member, some = field.set](TrainOptions& o, const YAML::Node& node, const Place& place) {
    std::invoke(member, o).clear();
    if (node.IsSequence() && node.size() == 0) return;
    some(o, node, place);
  };
  return field;
}

// A map from names to names: those that a template has to those of the data, special tokens to texts.
template <class Member>
Field names(std::string name, Member member, std::string meaning) {
  return {name,
          "map of NAME: NAME",
          std::move(meaning),
          [member](TrainOptions& o, const YAML::Node& node, const Place& place) {
            std::invoke(member, o).clear();
            if (!node.IsMap()) place.fail("expected a map of NAME: NAME");
            for (const auto& item : node) {
              std::invoke(member, o)[item.first.Scalar()] = text_of(item.second, place, "a name");
            }
          },
          [member](const TrainOptions& o, YAML::Emitter& out) {
            out << YAML::Flow << YAML::BeginMap;
            for (const auto& [key, value] : std::invoke(member, o)) {
              out << YAML::Key << key << YAML::Value << YAML::DoubleQuoted << value;
            }
            out << YAML::EndMap;
          },
          {{"type", "object"}, {"additionalProperties", {{"type", "string"}}}}};
}

// A map from patterns of tensor names to shares above 0.
template <class Member>
Field shares(std::string name, Member member, std::string meaning) {
  return {name,
          "map of PATTERN: number",
          std::move(meaning),
          [member](TrainOptions& o, const YAML::Node& node, const Place& place) {
            std::invoke(member, o).clear();
            if (!node.IsMap()) place.fail("expected a map of PATTERN: number");
            for (const auto& item : node) {
              double value = 0;
              if (!YAML::convert<double>::decode(item.second, value) || !(value > 0 && value <= 1)) {
                place.fail("{}: expected a number above 0 and at most 1", item.first.Scalar());
              }
              std::invoke(member, o).emplace_back(item.first.Scalar(), value);
            }
          },
          [member](const TrainOptions& o, YAML::Emitter& out) {
            out << YAML::Flow << YAML::BeginMap;
            for (const auto& [pattern, value] : std::invoke(member, o)) {
              out << YAML::Key << YAML::DoubleQuoted << pattern << YAML::Value << fmt::format("{}", value);
            }
            out << YAML::EndMap;
          },
          {{"type", "object"}, {"additionalProperties", share_schema()}}};
}

// A share of directions to train. 0 is a mistake that deserves a word of its own.
template <class Member>
Field positive_share(std::string name, Member member, std::string meaning) {
  Field field = number(std::move(name), member, 0, 1, std::move(meaning));
  field.type = "number above 0, at most 1";
  field.schema = share_schema();
  field.set = [member, set = field.set](TrainOptions& o, const YAML::Node& node, const Place& place) {
    set(o, node, place);
    if (std::invoke(member, o) <= 0) {
      place.fail(
          "expected a number above 0 and at most 1: 0 would train nothing (to freeze a weight, name it under "
          "freeze or leave it out of targets)");
    }
  };
  return field;
}

}  // namespace inlay::options::option
