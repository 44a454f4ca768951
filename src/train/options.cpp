#include "train/options.h"

#include <functional>
#include <limits>
#include <set>
#include <variant>

#include <yaml-cpp/yaml.h>

#include "core/error.h"
#include "core/text.h"
#include "io/file.h"

namespace inlay::train {

namespace {

// Where a value came from, for messages: "run.yaml, line 4: learning_rate".
struct Place {
  std::string source;
  std::string key;

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("{}: {}: {}", source, key, fmt::format(format, std::forward<Args>(args)...));
  }
};

std::string text_of(const YAML::Node& node, const Place& place, std::string_view expected) {
  if (node.IsNull()) place.fail("expected {}, got nothing", expected);
  if (!node.IsScalar()) place.fail("expected {}, got a {}", expected, node.IsMap() ? "map" : "list");
  return node.Scalar();
}

struct Field {
  std::string name, type, meaning;
  std::function<void(TrainOptions&, const YAML::Node&, const Place&)> set;
  std::function<void(const TrainOptions&, YAML::Emitter&)> emit;
};

Field integer(std::string name, std::int64_t TrainOptions::*member, std::int64_t least, std::string meaning) {
  return {name, fmt::format("integer ≥ {}", least), std::move(meaning),
          [member, least](TrainOptions& o, const YAML::Node& node, const Place& place) {
            const std::string expected = fmt::format("an integer of at least {}", least);
            const std::string text = text_of(node, place, expected);
            std::int64_t value = 0;
            if (!YAML::convert<std::int64_t>::decode(node, value) || value < least) {
              place.fail("expected {}, got '{}'", expected, text);
            }
            o.*member = value;
          },
          [member](const TrainOptions& o, YAML::Emitter& out) { out << o.*member; }};
}

Field number(std::string name, double TrainOptions::*member, double least, double most, std::string meaning) {
  const bool bounded = most < std::numeric_limits<double>::infinity();
  const std::string range = bounded ? fmt::format("from {} to {}", least, most) : fmt::format("of at least {}", least);
  return {name, "number " + range, std::move(meaning),
          [member, least, most, range](TrainOptions& o, const YAML::Node& node, const Place& place) {
            const std::string text = text_of(node, place, "a number " + range);
            double value = 0;
            if (!YAML::convert<double>::decode(node, value) || !(value >= least && value <= most)) {
              place.fail("expected a number {}, got '{}'", range, text);
            }
            o.*member = value;
          },
          [member](const TrainOptions& o, YAML::Emitter& out) { out << fmt::format("{}", o.*member); }};
}

Field boolean(std::string name, bool TrainOptions::*member, std::string meaning) {
  return {name, "true or false", std::move(meaning),
          [member](TrainOptions& o, const YAML::Node& node, const Place& place) {
            const std::string text = text_of(node, place, "true or false");
            bool value = false;
            if (!YAML::convert<bool>::decode(node, value)) place.fail("expected true or false, got '{}'", text);
            o.*member = value;
          },
          [member](const TrainOptions& o, YAML::Emitter& out) { out << o.*member; }};
}

Field text(std::string name, std::string TrainOptions::*member, std::string type, std::string meaning) {
  return {name, std::move(type), std::move(meaning),
          [member](TrainOptions& o, const YAML::Node& node, const Place& place) {
            o.*member = text_of(node, place, "text");
            if ((o.*member).empty()) place.fail("expected text, got nothing");
          },
          [member](const TrainOptions& o, YAML::Emitter& out) { out << YAML::DoubleQuoted << o.*member; }};
}

Field choice(std::string name, std::string TrainOptions::*member, std::vector<std::string> choices,
             std::string meaning) {
  std::string list;
  for (const std::string& c : choices) list += (list.empty() ? "" : ", ") + c;
  return {name, "one of " + list, std::move(meaning),
          [member, choices, list](TrainOptions& o, const YAML::Node& node, const Place& place) {
            const std::string value = text_of(node, place, "one of " + list);
            if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
              place.fail("expected one of {}, got '{}'", list, value);
            }
            o.*member = value;
          },
          [member](const TrainOptions& o, YAML::Emitter& out) { out << o.*member; }};
}

// A list of files: "a.jsonl", [a.jsonl, b.jsonl], or axolotl's [{path: a.jsonl}].
Field files(std::string name, std::vector<std::string> TrainOptions::*member, std::string meaning) {
  return {name, "list of {path: FILE}", std::move(meaning),
          [member](TrainOptions& o, const YAML::Node& node, const Place& place) {
            (o.*member).clear();
            const auto add = [&](const YAML::Node& entry) {
              if (entry.IsScalar()) {
                (o.*member).push_back(entry.Scalar());
                return;
              }
              if (!entry.IsMap() || !entry["path"] || !entry["path"].IsScalar()) {
                place.fail("each entry is a file name or {{path: FILE}}");
              }
              for (const auto& item : entry) {
                if (item.first.Scalar() != "path")
                  place.fail("'{}' is not a known key of an entry; known is path", item.first.Scalar());
              }
              (o.*member).push_back(entry["path"].Scalar());
            };
            if (node.IsSequence()) {
              for (const auto& entry : node) add(entry);
            } else if (!node.IsNull()) {
              add(node);
            }
          },
          [member](const TrainOptions& o, YAML::Emitter& out) {
            out << YAML::BeginSeq;
            for (const std::string& path : o.*member) {
              out << YAML::Flow << YAML::BeginMap << YAML::Key << "path" << YAML::Value << YAML::DoubleQuoted << path
                  << YAML::EndMap;
            }
            out << YAML::EndSeq;
          }};
}

const std::vector<Field>& fields() {
  using O = TrainOptions;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  static const std::vector<Field> table = {
      text("base_model", &O::base_model, "folder", "Hugging Face model folder to start from"),
      text("output_dir", &O::output_dir, "folder",
           "where checkpoints, metrics and the result go; must not hold a run yet"),
      files("datasets", &O::datasets, "JSONL files with input_ids and labels (-100: not learned)"),
      files("test_datasets", &O::test_datasets, "JSONL files to evaluate on"),
      choice("device", &O::device, {"auto", "cpu", "cuda"}, "where to train; auto takes a GPU if there is one"),
      choice("dtype", &O::dtype, {"auto", "fp32", "bf16"},
             "compute dtype; bf16 keeps fp32 master weights; auto is bf16 where the device multiplies it natively"),
      integer("sequence_len", &O::sequence_len, 2, "longest document, and tokens a packed row"),
      integer("micro_batch_size", &O::micro_batch_size, 1,
              "rows a forward pass; packed: up to micro_batch_size·sequence_len tokens, unpacked: documents"),
      integer("gradient_accumulation_steps", &O::gradient_accumulation_steps, 1, "micro-batches an optimizer step"),
      boolean("sample_packing", &O::sample_packing, "fill micro-batches with whole documents by tokens, not by count"),
      choice("excess_length_strategy", &O::excess_length_strategy, {"truncate", "drop", "raise"},
             "what happens to documents longer than sequence_len; counted in the log"),
      boolean("shuffle", &O::shuffle, "shuffle the documents anew every epoch"),
      integer("seed", &O::seed, 0, "of everything random"),
      number("num_epochs", &O::num_epochs, 0, infinity, "passes over the data, where max_steps is 0"),
      integer("max_steps", &O::max_steps, 0, "optimizer steps; 0: by num_epochs"),
      number("learning_rate", &O::learning_rate, 0, infinity, "peak learning rate; required"),
      choice("lr_scheduler", &O::lr_scheduler, {"constant", "linear", "cosine"}, "shape after the warm-up"),
      integer("warmup_steps", &O::warmup_steps, 0, "steps of linear warm-up"),
      number("warmup_ratio", &O::warmup_ratio, 0, 1, "the same as a share of all steps; only one of the two"),
      number("cosine_min_lr_ratio", &O::cosine_min_lr_ratio, 0, 1, "where the cosine ends, as a share of the peak"),
      number("adam_beta1", &O::adam_beta1, 0, 0.999999, "AdamW: decay of the first moment"),
      number("adam_beta2", &O::adam_beta2, 0, 0.999999999, "AdamW: decay of the second moment"),
      number("adam_epsilon", &O::adam_epsilon, 0, 1, "AdamW: added to the root of the second moment"),
      number("weight_decay", &O::weight_decay, 0, infinity, "AdamW: decoupled weight decay of matrices"),
      boolean("weight_decay_all", &O::weight_decay_all, "decay norms and biases too"),
      number("max_grad_norm", &O::max_grad_norm, 0, infinity, "clip the global gradient norm; 0: never"),
      choice("optimizer_state", &O::optimizer_state, {"fp32", "bf16"}, "dtype of AdamW's moments"),
      integer("logging_steps", &O::logging_steps, 1, "steps between lines of the log"),
      integer("eval_steps", &O::eval_steps, 0, "steps between evaluations on test_datasets; 0: at the end only"),
      integer("save_steps", &O::save_steps, 0, "steps between checkpoints; 0: at the end only"),
      integer("save_total_limit", &O::save_total_limit, 0, "checkpoints to keep; 0: all"),
      text("activation_policy", &O::activation_policy, "policy",
           "auto, keep, recompute, recompute_norms, recompute_mlp, or names to keep; any gives the same bits"),
      integer("mlp_tile", &O::mlp_tile, 0, "rows the MLP works on at once; 0: all"),
      boolean(
          "deterministic", &O::deterministic,
          "attention's backward pass in a fixed order on a GPU too; slower (docs/numbers.md); on the CPU it always is"),
  };
  return table;
}

const Field* find_field(const std::string& name) {
  for (const Field& field : fields()) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

[[noreturn]] void unknown_key(const std::string& source, const std::string& key) {
  std::vector<std::string_view> names;
  for (const Field& field : fields()) names.push_back(field.name);
  const std::string guess = nearest(key, names);
  user_error("{}: {} is not a known key{}", source, key, guess.empty() ? "" : "; did you mean " + guess + "?");
}

void set_key(TrainOptions& options, const std::string& key, const YAML::Node& node, const std::string& source) {
  const Field* field = find_field(key);
  if (field == nullptr) unknown_key(source, key);
  field->set(options, node, {source, key});
}

void validate(const TrainOptions& o, const std::string& source) {
  const auto require = [&](bool given, const char* key, const char* what) {
    if (!given) user_error("{}: {} is required: {}", source, key, what);
  };
  require(!o.base_model.empty(), "base_model", "the model folder to start from");
  require(!o.output_dir.empty(), "output_dir", "where the run goes");
  require(!o.datasets.empty(), "datasets", "a list of {path: FILE.jsonl}");
  require(o.learning_rate > 0, "learning_rate", "a number above 0");
  if (o.warmup_steps > 0 && o.warmup_ratio > 0) {
    user_error("{}: warmup_steps and warmup_ratio are both given; one of them is enough", source);
  }
  if (o.max_steps == 0 && !(o.num_epochs > 0)) user_error("{}: num_epochs: expected a number above 0", source);
  if (o.eval_steps > 0 && o.test_datasets.empty()) {
    user_error("{}: eval_steps is given, but test_datasets is not: there is nothing to evaluate on", source);
  }
  if (o.activation_policy != "auto") model::ActivationPolicy::parse(o.activation_policy);
}

}  // namespace

std::vector<OptionKey> option_keys() {
  const TrainOptions defaults;
  std::vector<OptionKey> keys;
  for (const Field& field : fields()) {
    YAML::Emitter out;
    field.emit(defaults, out);
    keys.push_back({field.name, field.type, out.c_str(), field.meaning});
  }
  return keys;
}

TrainOptions parse_options(const std::string& yaml, const std::string& source, const Overrides& overrides) {
  YAML::Node root;
  try {
    root = YAML::Load(yaml);
  } catch (const YAML::Exception& error) {
    user_error("{}, line {}: not valid YAML: {}", source, error.mark.line + 1, error.msg);
  }
  return parse_options(root, source, overrides);
}

TrainOptions parse_options(const YAML::Node& root, const std::string& source, const Overrides& overrides) {
  TrainOptions options;
  if (!root.IsMap() && !root.IsNull()) user_error("{}: expected keys and values, one a line", source);
  std::set<std::string> seen;
  for (const auto& item : root) {
    const std::string where = fmt::format("{}, line {}", source, item.first.Mark().line + 1);
    if (!item.first.IsScalar()) user_error("{}: expected a key", where);
    const std::string key = item.first.Scalar();
    if (!seen.insert(key).second) user_error("{}: {} is given twice", where, key);
    set_key(options, key, item.second, where);
  }
  for (const auto& [key, value] : overrides) {
    YAML::Node node;
    try {
      node = YAML::Load(value);
    } catch (const YAML::Exception&) {
      user_error("--{}: '{}' is not a value", key, value);
    }
    set_key(options, key, node, "command line");
  }
  validate(options, source);
  return options;
}

TrainOptions load_options(const std::filesystem::path& file, const Overrides& overrides) {
  return parse_options(io::read_file(file, std::size_t{16} << 20), file.string(), overrides);
}

std::string to_yaml(const TrainOptions& options) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  for (const Field& field : fields()) {
    out << YAML::Key << field.name << YAML::Value;
    field.emit(options, out);
  }
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace inlay::train
