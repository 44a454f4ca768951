#include "options/given_keys.h"

#include "core/text.h"
#include "options/all_fields.h"
#include "options/dataset_fields.h"
#include "options/foreign.h"

namespace inlay::options::option {

namespace {

// Adds a key of a file or of the command line to those given so far, or those of a map below it: osft: {basis: …} is
// osft.basis.
void collect(GivenKeys& given, const Place& place, const YAML::Node& value, Problems& problems) {
  const bool map = is_section(place.key) && value.IsMap();
  if (!map || value.size() == 0) {
    const std::size_t earlier =
        given.keys.remove_if([&](const Given& before) { return before.place.key == place.key; });
    if (map || !is_absent(value)) {
      given.keys.push_back({place, value});
    } else if (earlier > 0) {
      given.taken_back.insert(place.key);
    }
    return;
  }
  std::set<std::string> seen;
  for (const auto& item : value) {
    const std::string name = place.key + "." + (item.first.IsScalar() ? item.first.Scalar() : "?");
    const Place below = place.within(item.first, name);
    if (!seen.insert(name).second) problems.add("{}: {} is given twice", below.where(), name);
    collect(given, below, item.second, problems);
  }
}

// What the parser says of a key that is further in or out than those beside it tells nobody where to look.
std::string hint_of(const std::string& problem) {
  if (problem.find("illegal map value") != problem.npos || problem.starts_with("end of ")) {
    return "; is this line, or the one before it, indented more or less than it should be? Text with ': ' in it "
           "needs quotes";
  }
  return problem.find("tab") != problem.npos ? "; indent with spaces" : "";
}

}  // namespace

std::map<std::string, Place> GivenKeys::places() const {
  std::map<std::string, Place> places;
  for (const Given& item : keys) places.emplace(item.place.key, item.place);
  return places;
}

std::optional<YAML::Node> GivenKeys::entry(const std::string& list, std::size_t index) const {
  const auto at = std::ranges::find(keys, list, [](const Given& given) { return given.place.key; });
  if (at == keys.end()) return std::nullopt;
  if (!at->value.IsSequence()) return index == 0 ? std::optional(at->value) : std::nullopt;
  return index < at->value.size() ? std::optional<YAML::Node>(at->value[index]) : std::nullopt;
}

Place GivenKeys::place_of_entry(const std::string& list, std::size_t index, std::string_view key) const {
  const auto at = std::ranges::find(keys, list, [](const Given& given) { return given.place.key; });
  const std::optional<YAML::Node> node = entry(list, index);
  if (!node) return at == keys.end() ? Place{.file = {}, .line = 0, .key = list} : at->place;
  if (node->IsMap()) {
    for (const auto& item : *node) {
      if (item.first.IsScalar() && item.first.Scalar() == key) {
        return at->place.within(item.first, list + "." + std::string(key));
      }
    }
  }
  return at->place.within(*node, list);
}

YAML::Node load_yaml(const std::string& yaml, const std::string& source) {
  try {
    return YAML::Load(yaml);
  } catch (const YAML::Exception& error) {
    user_error("{}, line {}: not valid YAML: {}{}", source, error.mark.line + 1, error.msg, hint_of(error.msg));
  }
}

GivenKeys given_keys(const YAML::Node& root, const std::string& source, const Overrides& overrides,
                     Problems& problems) {
  GivenKeys given;
  std::set<std::string> seen;
  for (const auto& item : root) {
    const Place place{source, item.first.Mark().line + 1, item.first.IsScalar() ? item.first.Scalar() : "?"};
    if (!item.first.IsScalar()) {
      problems.add("{}: expected a key", place.where());
    } else if (!seen.insert(place.key).second) {
      problems.add("{}: {} is given twice", place.where(), place.key);
    } else {
      collect(given, place, item.second, problems);
    }
  }
  for (const auto& [key, value] : overrides) {
    try {
      collect(given, {"command line", 0, key}, YAML::Load(value), problems);
    } catch (const YAML::Exception&) {
      problems.add("--{}: '{}' is not a value", key, value);
    }
  }
  return given;
}

std::string likely_key(const std::string& key) {
  static const std::map<std::string_view, std::string_view> elsewhere = {
      {"lr", "learning_rate"},
      {"epochs", "num_epochs"},
      {"num_train_epochs", "num_epochs"},
      {"steps", "max_steps"},
      {"model", "base_model"},
      {"model_name", "base_model"},
      {"model_name_or_path", "base_model"},
      {"data", "datasets"},
      {"data_path", "datasets"},
      {"train_data", "datasets"},
      {"train_file", "datasets"},
      {"output", "output_dir"},
      {"max_length", "sequence_len"},
      {"max_seq_len", "sequence_len"},
      {"max_seq_length", "sequence_len"},
      {"seq_len", "sequence_len"},
      {"per_device_train_batch_size", "micro_batch_size"},
      {"clip_grad", "max_grad_norm"},
      {"gradient_clipping", "max_grad_norm"},
      {"rank", "lora_r"},
      {"lora_rank", "lora_r"},
  };
  if (const auto at = elsewhere.find(key); at != elsewhere.end()) return std::string(at->second);
  std::vector<std::string_view> names;
  // Of a group's keys another group's are no neighbours, however they are spelled.
  const std::string group = key.substr(0, key.find('.') + 1);
  for (const Field& field : fields()) {
    if (!group.empty() && field.name.starts_with(group)) names.push_back(field.name);
  }
  if (names.empty()) {
    for (const Field& field : fields()) names.push_back(field.name);
  }
  return nearest(key, names);
}

std::string likely_entry_key(const std::string& key) {
  std::vector<std::string_view> known;
  for (const Field& field : dataset_fields()) known.push_back(field.name);
  return nearest(key, known);
}

std::string did_you_mean(const std::string& guess) { return guess.empty() ? "" : "; did you mean " + guess + "?"; }

}  // namespace inlay::options::option
