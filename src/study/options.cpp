#include "study/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "io/file.h"
#include "io/hub.h"
#include "options/given_keys.h"
#include "options/paths.h"
#include "study/section.h"
#include "study/yaml_maps.h"

namespace inlay::study {

namespace {

Metric parse_metric(const Section& section) {
  if (!section.has("metric")) return Metric::loss;
  constexpr const char* expected = "one of loss, token_accuracy, choice_accuracy, exact_match";
  const std::string text = section.text("metric", expected);
  for (const Metric metric : {Metric::loss, Metric::token_accuracy, Metric::choice_accuracy, Metric::exact_match}) {
    if (text == name_of(metric)) return metric;
  }
  section.fail("metric", fmt::format("expected {}, got '{}'", expected, text));
}

// Answers are needed by exact_match, and of the base model for what it is to keep.
Answering parse_answering(const Section& section, bool own) {
  const bool matched = section.has("metric") && parse_metric(section) == Metric::exact_match;
  for (const char* key : {"match", "marker"}) {
    if (section.has(key) && !matched) section.fail(key, "is for metric: exact_match");
  }
  for (const char* key : {"max_new_tokens", "limit"}) {
    if (section.has(key) && !matched && !own) section.fail(key, "is for answers: metric: exact_match, or prompts");
  }
  Answering answering;
  if (section.has("match")) {
    const std::string text = section.text("match", data::match_names);
    const auto match = data::parse_match(text);
    if (!match) section.fail("match", fmt::format("expected {}, got '{}'", data::match_names, text));
    answering.rule.match = *match;
  }
  if (section.has("marker")) answering.rule.marker = section.text("marker", "the text that the answer follows");
  answering.max_new_tokens = section.count("max_new_tokens", answering.max_new_tokens);
  answering.limit = section.count("limit", 0);
  return answering;
}

HeldSet parse_held(const Section& section) {
  HeldSet held{.name = section.label("name"), .metric = parse_metric(section)};
  const bool own = section.has("prompts");
  if (section.has("counted")) {
    const YAML::Node node = section.at("counted", "true or false");
    if (!node.IsScalar() || !YAML::convert<bool>::decode(node, held.counted)) {
      section.fail("counted", fmt::format("expected true or false, got {}", kind_of(node)));
    }
  }
  held.answering = parse_answering(section, own);
  if (!own) {
    for (const char* key : {"answers", "temperature"}) {
      if (section.has(key)) section.fail(key, "is for prompts that the base model answers");
    }
    held.data = section.files("data", "a JSONL file or a list of them");
    return held;
  }
  if (section.has("data")) section.fail("data", "prompts are given already; one of them is enough");
  held.data = section.files("prompts", "a JSONL file or a list of them");
  if (section.has("answers") && section.text("answers", "base") != "base") {
    section.fail("answers", fmt::format("expected base, got '{}'", section.text("answers", "base")));
  }
  held.own_temperature = 1;
  if (section.has("temperature")) {
    const YAML::Node node = section.at("temperature", "a number");
    double heat = 0;
    if (!YAML::convert<double>::decode(node, heat) || !(heat == 0 || (heat >= 1e-6 && heat <= 1e6))) {
      section.fail("temperature", fmt::format("expected 0 or a number from 1e-6 to 1e6, got {}", kind_of(node)));
    }
    held.own_temperature = heat;
  }
  return held;
}

KeepModels parse_keep(const Section& section) {
  if (!section.has("keep_models")) return KeepModels::last;
  const std::string text = section.text("keep_models", "one of last, all, none");
  if (text == "last") return KeepModels::last;
  if (text == "all") return KeepModels::all;
  if (text == "none") return KeepModels::none;
  section.fail("keep_models", fmt::format("expected one of last, all, none, got '{}'", text));
}

template <class Item>
void check_names(const std::vector<Item>& items, const Section& section) {
  for (std::size_t i = 0; i + 1 < items.size(); ++i) {
    if (items[i].name == items.back().name) section.fail("name", fmt::format("'{}' is given twice", items[i].name));
  }
}

constexpr std::string_view study_keys[] = {"base_model", "output_dir", "tasks",    "held",       "methods",
                                           "seeds",      "training",   "baseline", "keep_models"};

// One of a file's studies: its keys, over those that are common to all.
struct NamedStudy {
  std::string name;  // empty: it is the only one
  YAML::Node keys;
};

std::vector<NamedStudy> divided(const YAML::Node& file, const std::string& source, Problems& problems) {
  if (!file.IsMap() || !find(file, "studies").IsDefined()) return {{.name = "", .keys = file}};
  std::vector<std::string_view> known(std::begin(study_keys), std::end(study_keys));
  known.emplace_back("studies");
  const Section root(file, source, "", known, problems);
  std::vector<std::string_view> own(std::begin(study_keys), std::end(study_keys));
  std::erase(own, "output_dir");  // every study gets a folder below the common one
  own.emplace_back("name");
  std::vector<NamedStudy> studies;
  problems.gather([&] {
    for (const Section& section : root.list("studies", own, "a list of {name, tasks, methods}")) {
      problems.gather([&] {
        studies.push_back({section.label("name"), merged(without(file, "studies"), without(section.node(), "name"))});
        check_names(studies, section);
      });
    }
  });
  return studies;
}

// Which of a method's keys says what is done to the models of another, and how.
struct TakeBackKey {
  const char* name;
  train::TakeBack how;
};
constexpr TakeBackKey take_back_keys[] = {{"average", train::TakeBack::average}, {"keep", train::TakeBack::prune}};

// Of a method that trains nothing itself: everything but which rates it takes.
ContinualMethod::After parse_after(const Section& section, const std::vector<ContinualMethod>& methods) {
  const std::string name = section.text("after", "the name of the method whose models it takes");
  const auto found = std::ranges::find(methods, name, &ContinualMethod::name);
  if (found == methods.end()) {
    section.fail("after", fmt::format("expected the name of a method that is given before, got '{}'", name));
  }
  if (found->after) section.fail("after", fmt::format("{} trains nothing either; name a method that does", name));
  if (section.has("training")) section.fail("training", fmt::format("the models are those of {}", name));
  ContinualMethod::After after{.method = static_cast<std::size_t>(found - methods.begin())};
  for (const auto& [key, how] : take_back_keys) {
    if (!section.has(key)) continue;
    if (!after.shares.empty()) section.fail(key, "average or keep: one of them is enough");
    after.how = how;
    after.shares = section.values<double>(
        key, [](double share) { return share > 0 && share < 1; }, "a list of shares between 0 and 1");
  }
  if (after.shares.empty()) section.at("average", "a list of shares, or keep: a list of them");
  return after;
}

// Puts the training data of the tasks before this one in the place of the word "earlier".
void name_earlier_data(options::TrainOptions& training, const ContinualOptions& study, std::size_t task,
                       const std::string& method, const std::string& source) {
  std::vector<std::string>& data = training.osft.calibration.data;
  const auto word = std::find(data.begin(), data.end(), "earlier");
  if (word == data.end()) return;
  data.erase(word);
  for (std::size_t t = 0; t < task; ++t) {
    for (const std::string& file : study.tasks[t].train) {
      if (std::find(data.begin(), data.end(), file) == data.end()) data.push_back(file);
    }
  }
  if (data.empty()) {
    user_error("{}: method {}: osft.calibration.data: nothing is earlier than the first task; add sample or a file",
               source, method);
  }
}

// Reads a study's file part by part, so that all that is wrong with it is told at once.
class StudyReader {
 public:
  StudyReader(const YAML::Node& node, std::string source, const std::filesystem::path& folder)
      : source_(std::move(source)),
        folder_(folder),
        root_(node, source_, "", {std::begin(study_keys), std::end(study_keys)}, problems_) {}

  ContinualOptions read(const std::string& text) {
    study_.text = text;
    gather([&] {
      study_.base_model = io::model_folder(
          located(root_.text("base_model", "the model to start from"), options::PathUse::read, "base_model"), "", {});
    });
    gather([&] {
      study_.output_dir =
          located(root_.text("output_dir", "the folder that the study is written to"), options::PathUse::written, "");
    });
    gather([&] { study_.keep_models = parse_keep(root_); });
    gather([&] {
      if (!root_.has("seeds")) return;
      study_.seeds = root_.values<std::int64_t>(
          "seeds", [](std::int64_t seed) { return seed >= 0; }, "a list of integers of at least 0");
    });
    gather([&] { common_.reset(root_.training()); });
    gather([&] { read_tasks(); });
    gather([&] { read_held(); });
    gather([&] { read_methods(); });
    gather([&] { read_evaluation(); });
    gather([&] { read_baseline(); });
    problems_.sort_by_line(source_);
    problems_.raise();
    return std::move(study_);
  }

 private:
  template <class Action>
  void gather(Action&& action) {
    problems_.gather(std::forward<Action>(action));
  }

  std::string located(const std::string& path, options::PathUse use, const std::string& key) {
    return folder_.empty() ? options::with_home(path) : options::located(path, use, folder_, key, study_.notes);
  }
  void locate_all(std::vector<std::string>& files, const std::string& key) {
    for (std::string& file : files) file = located(file, options::PathUse::read, key);
  }

  void read_tasks() {
    const std::vector<Section> sections = root_.list(
        "tasks", {"name", "train", "eval", "metric", "match", "marker", "max_new_tokens", "limit", "training"},
        "a list of {name, train, eval, metric}");
    for (const Section& section : sections) {
      ContinualTask& task = study_.tasks.emplace_back();
      task_keys_.emplace_back(YAML::NodeType::Map);
      gather([&] {
        task.name = section.label("name");
        check_names(study_.tasks, section);
      });
      gather([&] {
        task.train = section.files("train", "a JSONL file or a list of them");
        locate_all(task.train, "train");
      });
      gather([&] {
        task.eval = section.files("eval", "a JSONL file or a list of them");
        locate_all(task.eval, "eval");
      });
      gather([&] {
        task.metric = parse_metric(section);
        task.answering = parse_answering(section, false);
      });
      gather([&] { task_keys_.back().reset(section.training()); });
    }
  }

  void read_held() {
    if (!root_.has("held")) return;
    const std::vector<Section> sections = root_.list("held",
                                                     {"name", "data", "metric", "match", "marker", "max_new_tokens",
                                                      "limit", "prompts", "answers", "temperature", "counted"},
                                                     "a list of {name, data, metric}");
    for (const Section& section : sections) {
      gather([&] {
        study_.held.push_back(parse_held(section));
        locate_all(study_.held.back().data, "held");
        check_names(study_.held, section);
      });
    }
  }

  void read_methods() {
    const std::vector<Section> sections =
        root_.list("methods", {"name", "learning_rates", "training", "after", "average", "keep"},
                   "a list of {name, learning_rates, training}");
    for (const Section& section : sections) gather([&] { read_method(section); });
  }

  void read_method(const Section& section) {
    ContinualMethod method;
    method.name = section.label("name");
    for (const auto& [key, how] : take_back_keys) {
      if (section.has(key) && !section.has("after")) {
        section.fail(key, "needs after: the method whose models it takes");
      }
    }
    if (section.has("after")) {
      method.after = parse_after(section, study_.methods);
      method.learning_rates = study_.methods[method.after->method].learning_rates;
    }
    gather([&] { read_rates(method, section); });
    gather([&] { read_training_of(method, section); });
    study_.methods.push_back(std::move(method));
    check_names(study_.methods, section);
  }

  void read_rates(ContinualMethod& method, const Section& section) {
    if (!section.has("learning_rates") && method.after) return;
    const std::vector<double> all = std::exchange(
        method.learning_rates, section.values<double>(
                                   "learning_rates", [](double rate) { return rate > 0 && std::isfinite(rate); },
                                   "a list of numbers above 0"));
    for (const double rate : method.learning_rates) {
      if (!method.after || std::ranges::find(all, rate) != all.end()) continue;
      section.fail("learning_rates",
                   fmt::format("{} is not one of {}'s", rate_name(rate), study_.methods[method.after->method].name));
    }
  }

  void read_training_of(ContinualMethod& method, const Section& section) {
    const YAML::Node keys = merged(common_, section.training());
    const double rate = method.learning_rates.empty() ? 1 : method.learning_rates[0];
    for (std::size_t t = 0; t < study_.tasks.size() && !method.after; ++t) {
      // A task says how OSFT goes about it, not whether it is used.
      const YAML::Node of_task = find(keys, "osft").IsDefined() ? task_keys_[t] : without(task_keys_[t], "osft");
      method.training.push_back(training(merged(keys, of_task), t, rate));
      name_earlier_data(method.training[t], study_, t, method.name, source_);
    }
  }

  void read_evaluation() {
    if (study_.tasks.empty()) return;
    study_.evaluation = training(common_, 0, 1);
    for (std::size_t t = 0; t < study_.tasks.size(); ++t) {
      study_.tasks[t].evaluation = training(merged(common_, without(task_keys_[t], "osft")), t, 1);
    }
  }

  void read_baseline() {
    if (study_.methods.empty()) return;
    const auto named = [&](const std::string& name) {
      return std::ranges::find(study_.methods, name, &ContinualMethod::name) != study_.methods.end();
    };
    study_.baseline = root_.has("baseline") ? root_.text("baseline", "the name of a method")
                      : named("sft")        ? "sft"
                                            : study_.methods[0].name;
    if (!named(study_.baseline)) {
      root_.fail("baseline", fmt::format("expected the name of a method, got '{}'", study_.baseline));
    }
  }

  // Training keys with what the study itself sets, read as `inlay train` would read them. What is missing of the study
  // was said already, and is no problem of these keys.
  options::TrainOptions training(const YAML::Node& of_study, std::size_t task, double learning_rate) const {
    // A map of its own: to assign to a node would change what every copy of it stands for.
    YAML::Node keys(merged(of_study, YAML::Node(YAML::NodeType::Map)));
    const auto or_any = [](const std::string& text) { return text.empty() ? "-" : text; };
    keys["base_model"] = or_any(study_.base_model);
    keys["output_dir"] = or_any(study_.output_dir);
    keys["datasets"] = study_.tasks[task].train.empty() ? std::vector<std::string>{"-"} : study_.tasks[task].train;
    keys["learning_rate"] = fmt::format("{}", learning_rate);
    options::TrainOptions options = options::parse_options(keys, source_, {});
    if (!folder_.empty()) {
      for (const char* key : {"chat_template", "kd_teacher", "dataset_prepared_path", "memory.disk", "osft.cache"}) {
        options::locate(options, key, folder_);
      }
      std::string& teacher = options.distillation.teacher;
      if (!teacher.empty()) teacher = io::model_folder(teacher, "", {});
      for (std::string& file : options.osft.calibration.data) {
        if (file == "sample" || file == "earlier") continue;
        file = options::located(file, options::PathUse::read, folder_, "osft.calibration.data", options.notes);
      }
    }
    return options;
  }

  Problems problems_;
  std::string source_;
  const std::filesystem::path& folder_;
  Section root_;
  ContinualOptions study_;
  YAML::Node common_{YAML::NodeType::Map};
  std::vector<YAML::Node> task_keys_;
};

}  // namespace

std::vector<ContinualOptions> parse_studies(const std::string& yaml, const std::string& source,
                                            const std::filesystem::path& folder) {
  const YAML::Node node = options::option::load_yaml(yaml, source);
  std::vector<ContinualOptions> studies;
  Problems problems;
  for (const NamedStudy& one : divided(node, source, problems)) {
    problems.gather([&] {
      ContinualOptions study = StudyReader(one.keys, source, folder).read(yaml);
      study.name = one.name;
      if (!one.name.empty()) study.output_dir = (std::filesystem::path(study.output_dir) / one.name).string();
      studies.push_back(std::move(study));
    });
  }
  problems.sort_by_line(source);
  problems.raise();
  return studies;
}

std::vector<ContinualOptions> load_studies(const std::filesystem::path& file) {
  return parse_studies(io::read_file(file, std::size_t{16} << 20), file.string(), file.parent_path());
}

std::string rate_name(double rate) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), rate, std::chars_format::scientific).ptr;
  const std::string text(buffer, end);  // 2.5e-04
  const std::size_t exponent = text.find('e') + 1;
  const std::size_t digits = text.find_first_of("123456789", exponent);
  const std::string sign = text[exponent] == '-' ? "-" : "";
  return text.substr(0, exponent) + sign + (digits == text.npos ? "0" : text.substr(digits));
}

}  // namespace inlay::study
