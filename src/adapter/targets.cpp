#include "adapter/targets.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "adapter/regex.h"
#include "core/problems.h"
#include "core/text.h"

namespace inlay::adapter {

namespace {

using weights::Parameter;
using weights::Part;
using weights::Role;

bool ends_with_name(std::string_view module, std::string_view name) {
  return module == name ||
         (module.size() > name.size() && module.ends_with(name) && module[module.size() - name.size() - 1] == '.');
}

std::string without(std::string name, std::string_view suffix) {
  if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
  return name;
}

std::string last_word(const std::string& module) { return module.substr(module.rfind('.') + 1); }

// transformers has turned round what stands before the text model of a model with images, checkpoints have not.
std::string text_model_name(const std::string& name) {
  const std::string_view old = "language_model.";
  if (!name.starts_with(old)) return name;
  const std::string rest = name.substr(old.size());
  return rest.starts_with("model.") ? "model.language_model." + rest.substr(6) : rest;
}

// And it has renamed Mixtral's blocks.
std::string transformers_name(const std::string& checkpoint_name) {
  std::string name = text_model_name(checkpoint_name);
  const std::string_view old = ".block_sparse_moe.";
  if (const auto at = name.find(old); at != std::string::npos) name.replace(at, old.size(), ".mlp.");
  return name;
}

// Something that can be adapted: a linear layer, or a tensor of all experts of a layer, stacked.
struct Candidate {
  std::string module;  // of stacked experts: the module that has the tensor
  std::string tensor;  // what target_parameters can call it
  std::int64_t layer = -1;
  const Parameter* parameter = nullptr;  // of a linear layer
  std::int64_t part = 0;
  const std::vector<Parameter>* experts = nullptr;
  bool linear = false;  // all-linear means it

  const Parameter& first() const { return experts != nullptr ? experts->front() : *parameter; }
  std::int64_t out() const {
    return experts != nullptr ? first().rows() : first().parts[static_cast<std::size_t>(part)].rows;
  }
  std::int64_t in() const { return first().shape[1]; }
};

class Finder {
 public:
  Finder(const AdapterConfig& config, const model::ModelConfig& model, const NameSource& source)
      : config_(config), tied_(model.tied_embeddings), source_(source), parameters_(model) {
    collect_linears();
    collect_experts();
    problems_.gather([&] {
      for (const auto& [pattern, rank] : config.rank_pattern)
        ranks_.emplace_back(suffix(pattern, "rank_pattern"), rank);
      for (const auto& [pattern, alpha] : config.alpha_pattern) {
        alphas_.emplace_back(suffix(pattern, "alpha_pattern"), alpha);
      }
    });
    check_layers(model.layer_count());
    problems_.raise();
  }

  std::vector<std::string> linear_names() const {
    std::vector<std::string> names;
    for (const Candidate& c : candidates_) {
      if (!c.linear) continue;
      const std::string word = last_word(c.module);
      const bool ambiguous = std::ranges::any_of(candidates_, [&](const Candidate& other) {
        return !other.linear && other.experts == nullptr && ends_with_name(other.module, word);
      });
      remember(names, ambiguous ? c.module : word);
    }
    return names;
  }

  AdapterTargets find() {
    choose_modules();
    choose_parameters();
    AdapterTargets result;
    result.dora = config_.dora;
    for (const Candidate* candidate : chosen()) add(*candidate, result.parts);
    save_modules(result);
    if (result.parts.empty() && problems_.empty()) {
      problems_.add("{}: {}: this model has nothing that {} names", source_.file, key("target_modules"),
                    config_.target_modules.pattern.empty() ? "it" : "'" + config_.target_modules.pattern + "'");
    }
    check_parts(result.parts);
    problems_.raise();
    return result;
  }

 private:
  std::string key(const std::string& name) const {
    if (!source_.options) return name;
    if (name == "layers_to_transform") return "peft_" + name;
    if (name == "use_dora") return "peft_" + name;
    return name.starts_with("lora_") ? name : "lora_" + name;
  }
  std::string place(const std::string& name) const { return source_.file + ": " + key(name); }

  // A name or expression that may have more words before it.
  Regex suffix(const std::string& pattern, const std::string& of) const {
    return {"(.*\\.)?(" + pattern + ")", place(of)};
  }

  void collect_linears() {
    parameters_.for_each([&](Parameter& p) {
      const bool known = p.role != Role::norm && p.role != Role::bias && p.role != Role::sinks;
      if (!known || !p.is_matrix() || p.role == Role::embedding || p.parts.front().stacked > 0) return;
      for (std::size_t i = 0; i < p.parts.size(); ++i) {
        Candidate c;
        const std::string& name = p.parts[i].checkpoint_name;
        c.tensor = p.role == Role::router ? transformers_name(name) : text_model_name(name);
        c.module = without(c.tensor, ".weight");
        c.layer = p.layer;
        c.parameter = &p;
        c.part = static_cast<std::int64_t>(i);
        // transformers has routers and experts as plain tensors, which are no linear layers.
        c.linear = p.role != Role::router && p.role != Role::head && p.expert < 0;
        candidates_.push_back(std::move(c));
      }
    });
  }

  void collect_experts() {
    for (std::size_t l = 0; l < parameters_.layers.size(); ++l) {
      const model::MoeParameters& moe = parameters_.layers[l]->moe;
      for (const auto& [experts, name] : {std::pair(&moe.gate_up, "gate_up_proj"), std::pair(&moe.down, "down_proj")}) {
        if (experts->empty()) continue;
        const std::string& first = experts->front().parts.front().checkpoint_name;
        const std::string_view word = ".experts";
        Candidate c;
        c.module = transformers_name(first.substr(0, first.find(word) + word.size()));
        c.tensor = c.module + "." + name;
        c.layer = static_cast<std::int64_t>(l);
        c.experts = experts;
        candidates_.push_back(std::move(c));
      }
    }
  }

  void check_layers(std::int64_t count) {
    for (const std::int64_t layer : config_.layers) {
      if (layer >= count) {
        problems_.add("{}: layer {} of a model that has {}, counted from 0", place("layers_to_transform"), layer,
                      count);
      }
    }
  }

  bool names(const ModuleNames& names, const std::optional<Regex>& pattern, const Candidate& candidate) const {
    if (names.all_linear()) return candidate.linear;
    if (pattern) return pattern->matches(candidate.module);
    return std::ranges::any_of(names.names, [&](const auto& name) { return ends_with_name(candidate.module, name); });
  }

  static std::optional<Regex> pattern_of(const ModuleNames& names, const std::string& place) {
    if (names.pattern.empty() || names.all_linear()) return std::nullopt;
    return Regex(names.pattern, place);
  }

  void choose_modules() {
    const ModuleNames& targets = config_.target_modules;
    std::optional<Regex> wanted, excluded;
    std::vector<Regex> saved;
    problems_.gather([&] { wanted = pattern_of(targets, place("target_modules")); });
    problems_.gather([&] { excluded = pattern_of(config_.exclude_modules, place("exclude_modules")); });
    problems_.gather([&] {
      for (const std::string& module : config_.modules_to_save) {
        saved.emplace_back("(^|.*\\.)" + module + "($|\\..*)", place("modules_to_save"));
      }
    });
    problems_.raise();
    check_names(targets, wanted);
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      const Candidate& c = candidates_[i];
      if (c.experts != nullptr || !names(targets, wanted, c)) continue;
      if (names(config_.exclude_modules, excluded, c)) continue;
      if (std::ranges::any_of(saved, [&](const Regex& regex) { return regex.matches(c.module); })) continue;
      const bool direct = std::ranges::find(targets.names, c.module) != targets.names.end();
      if (!direct && !config_.layers.empty() && std::ranges::find(config_.layers, c.layer) == config_.layers.end())
        continue;
      chosen_.insert(i);
    }
  }

  // Names that cannot be adapted, with the reason, and names that are none.
  void check_names(const ModuleNames& targets, const std::optional<Regex>& pattern) {
    Candidate embedding, head;
    embedding.module = without(text_model_name(parameters_.embedding.parts.front().checkpoint_name), ".weight");
    head.module = "lm_head";
    if (names(targets, pattern, embedding)) {
      problems_.add("{}: {}: low-rank changes of embeddings are not supported; name it under {} to train it in full",
                    place("target_modules"), embedding.module, key("modules_to_save"));
    }
    if (tied_ && names(targets, pattern, head)) {
      problems_.add("{}: {}: this model's head is its embedding, which cannot be adapted; leave it out",
                    place("target_modules"), head.module);
    }
    if (!source_.options) return;
    std::vector<std::string> unknown;
    for (const std::string& name : targets.names) {
      if (ends_with_name(embedding.module, name) || (tied_ && ends_with_name(head.module, name))) continue;
      bool of_experts = false, found = false;
      for (const Candidate& c : candidates_) {
        found = found || (c.experts == nullptr && ends_with_name(c.module, name));
        of_experts =
            of_experts || (c.experts != nullptr && (ends_with_name(c.tensor, name) || ends_with_name(c.module, name)));
      }
      if (found) continue;
      if (of_experts) {
        problems_.add("{}: {} is a tensor of stacked experts, not a module; name it under {}", place("target_modules"),
                      name, key("target_parameters"));
      } else {
        unknown.push_back(name);
      }
    }
    std::vector<std::string> known;
    for (const Candidate& c : candidates_) {
      if (c.experts == nullptr) remember(known, last_word(c.module));
    }
    report_unknown("target_modules", unknown, known);
  }

  static void remember(std::vector<std::string>& known, const std::string& name) {
    if (std::ranges::find(known, name) == known.end()) known.push_back(name);
  }

  void report_unknown(const char* of, const std::vector<std::string>& unknown, const std::vector<std::string>& known) {
    if (unknown.empty()) return;
    const std::vector<std::string_view> candidates(known.begin(), known.end());
    std::vector<std::string> shown;
    for (const std::string& name : unknown) {
      const std::string guess = nearest(name, candidates);
      shown.push_back(guess.empty() ? name : fmt::format("{} (did you mean {}?)", name, guess));
    }
    problems_.add("{}: this model has no {}; it has {}", place(of), join(shown, ", "), join(known, ", "));
  }

  void choose_parameters() {
    std::vector<std::string> unknown;
    for (const std::string& name : config_.target_parameters) {
      bool found = false;
      for (std::size_t i = 0; i < candidates_.size(); ++i) {
        if (!ends_with_name(candidates_[i].tensor, name)) continue;
        found = true;
        if (!chosen_.insert(i).second && !by_parameter_.contains(i)) {
          problems_.add("{}: {} is a target twice: also under {}", place("target_parameters"), candidates_[i].tensor,
                        key("target_modules"));
        }
        by_parameter_.insert(i);
      }
      if (!found) unknown.push_back(name);
    }
    if (source_.options) {
      std::vector<std::string> known;
      for (const Candidate& c : candidates_) {
        if (c.experts != nullptr || c.first().role == Role::router) {
          remember(known, last_word(c.module) + "." + last_word(c.tensor));
        }
      }
      for (const Candidate& c : candidates_) {
        if (c.linear) remember(known, last_word(c.module) + "." + last_word(c.tensor));
      }
      report_unknown("target_parameters", unknown, known);
    }
    if (by_parameter_.empty()) return;
    // PEFT has neither, and would refuse to load such an adapter.
    if (config_.dora) {
      problems_.add("{}: works only on modules, not together with {}", place("use_dora"), key("target_parameters"));
    }
    if (config_.dropout > 0) {
      problems_.add("{}: works only on modules; with {} it must be 0", place("lora_dropout"), key("target_parameters"));
    }
    for (const std::size_t i : by_parameter_) {
      if (candidates_[i].experts == nullptr) continue;
      const bool both = std::ranges::any_of(chosen_, [&](std::size_t other) {
        const Parameter* p = candidates_[other].parameter;
        return p != nullptr && p->expert >= 0 && p->layer == candidates_[i].layer;
      });
      if (both) {
        problems_.add("{}: {}: experts already have adapters of their own, from {}", place("target_parameters"),
                      candidates_[i].tensor, key("target_modules"));
        return;
      }
    }
  }

  // In the model's order: a layer's stacked experts stand where its other tensors do.
  std::vector<const Candidate*> chosen() const {
    std::vector<const Candidate*> result;
    for (const std::size_t i : chosen_) result.push_back(&candidates_[i]);
    const auto place_of = [&](const Candidate* c) {
      return c->layer < 0 ? parameters_.layers.size() : static_cast<std::size_t>(c->layer);
    };
    std::ranges::stable_sort(result, {}, place_of);
    return result;
  }

  template <class Number>
  static Number by_pattern(const std::vector<std::pair<Regex, Number>>& patterns, const std::string& name,
                           Number other) {
    for (const auto& [regex, value] : patterns) {
      if (regex.matches(name)) return value;
    }
    return other;
  }

  void add(const Candidate& c, std::vector<AdaptedPart>& parts) const {
    const std::size_t index = static_cast<std::size_t>(&c - candidates_.data());
    const std::string& name = by_parameter_.contains(index) ? c.tensor : c.module;
    AdaptedPart part;
    part.module = c.module;
    part.out = c.out();
    part.in = c.in();
    part.rank = by_pattern(ranks_, name, config_.rank);
    part.alpha = by_pattern(alphas_, name, config_.alpha);
    const auto rank = static_cast<double>(part.rank);
    part.scale = part.alpha / (config_.rslora ? std::sqrt(rank) : rank);
    part.is_head = c.first().role == Role::head;
    if (c.experts == nullptr) {
      part.parameter = c.parameter->name;
      part.part = c.part;
      part.row = c.parameter->parts[static_cast<std::size_t>(c.part)].row;
      parts.push_back(std::move(part));
      return;
    }
    // PEFT wraps a module once for every tensor of its that is a target; the last is outside.
    if (c.tensor.ends_with(".gate_up_proj") && is_chosen(c.module + ".down_proj")) part.module += ".base_layer";
    part.part = AdaptedPart::whole;
    part.stacked = static_cast<std::int64_t>(c.experts->size());
    for (const Parameter& expert : *c.experts) {
      part.parameter = expert.name;
      part.expert = expert.expert;
      parts.push_back(part);
    }
  }

  bool is_chosen(const std::string& tensor) const {
    return std::ranges::any_of(by_parameter_, [&](std::size_t i) { return candidates_[i].tensor == tensor; });
  }

  // Whether a tensor belongs to a module whose name ends so, as PEFT looks for modules to save.
  static bool belongs(std::string_view tensor, std::string_view name) {
    for (auto end = tensor.rfind('.'); end != std::string::npos && end > 0; end = tensor.rfind('.', end - 1)) {
      if (tensor.substr(0, end).ends_with(name)) return true;
    }
    return false;
  }

  bool saved(std::string_view tensor) const {
    return std::ranges::any_of(config_.modules_to_save, [&](const auto& name) { return belongs(tensor, name); });
  }

  static constexpr std::string_view tied_head = "lm_head.weight";

  void save_modules(AdapterTargets& result) {
    bool head = false;  // a tied one, by its own name
    parameters_.for_each([&](Parameter& p) {
      std::vector<SavedPart> found;
      for (std::size_t i = 0; i < p.parts.size(); ++i) {
        const std::string tensor = transformers_name(p.parts[i].checkpoint_name);
        const bool as_head = tied_ && p.role == Role::embedding && saved(tied_head);
        head = head || as_head;
        if (!saved(tensor) && !as_head) continue;
        Shape shape = p.shape;
        shape[0] = p.parts[i].rows;
        found.push_back({p.name, static_cast<std::int64_t>(i), tensor, shape, tied_ && p.role == Role::embedding});
      }
      if (found.empty()) return;
      if (p.expert >= 0 || p.vectors) {
        problems_.add("{}: {}: training experts in full beside adapters is not supported; adapt them with {}",
                      place("modules_to_save"), p.parts.front().label(), key("target_parameters"));
      } else if (found.size() != p.parts.size()) {
        std::vector<std::string> all;
        for (const Part& part : p.parts) all.push_back(part.checkpoint_name);
        problems_.add("{}: {} are one matrix here, and train together or not at all", place("modules_to_save"),
                      join(all, ", "));
      }
      if (tied_ && p.role == Role::embedding && !config_.ties_embeddings) {
        problems_.add(
            "{}: {}: this model's head is its embedding, and this adapter has them trained apart, which is not "
            "supported; expected ensure_weight_tying: true",
            place("modules_to_save"), head ? "lm_head" : "embed_tokens");
      }
      std::ranges::move(found, std::back_inserter(result.saved));
    });
    if (!source_.options) return;
    std::vector<std::string> unknown, known;
    parameters_.for_each([&](Parameter& p) {
      if (p.expert >= 0) return;
      for (const Part& part : p.parts) {
        const std::string module = transformers_name(part.checkpoint_name);
        remember(known, last_word(module.substr(0, module.rfind('.'))));
      }
    });
    if (tied_) remember(known, "lm_head");
    for (const std::string& name : config_.modules_to_save) {
      const bool any = std::ranges::any_of(result.saved, [&](const auto& part) { return belongs(part.tensor, name); });
      if (!any && !(head && belongs(tied_head, name))) unknown.push_back(name);
    }
    report_unknown("modules_to_save", unknown, known);
  }

  void check_parts(const std::vector<AdaptedPart>& parts) {
    if (!source_.options) return;
    std::set<std::string> seen;
    for (const AdaptedPart& part : parts) {
      const std::int64_t most = std::min(part.in, part.out);
      if (part.rank <= most || !seen.insert(last_word(part.module)).second) continue;
      problems_.add("{}: {} is more than {} can have, which is {} by {}; expected at most {}", place("r"), part.rank,
                    part.module, part.out, part.in, most);
    }
  }

  const AdapterConfig config_;
  bool tied_;
  const NameSource source_;
  model::ModelParameters parameters_;
  std::vector<Candidate> candidates_;
  std::set<std::size_t> chosen_, by_parameter_;  // of candidates_
  std::vector<std::pair<Regex, std::int64_t>> ranks_;
  std::vector<std::pair<Regex, double>> alphas_;
  Problems problems_;
};

}  // namespace

AdapterTargets find_targets(const AdapterConfig& config, const model::ModelConfig& model, const NameSource& source) {
  return Finder(config, model, source).find();
}

void check_trains(const AdapterTargets& targets, const std::string& source) {
  const auto is_head = [](const AdaptedPart& part) { return part.is_head; };
  if (!targets.dora || std::ranges::none_of(targets.parts, is_head)) return;
  user_error(
      "{}: the head ({}) cannot train with DoRA: the loss scales the head's gradients as it computes them, but not "
      "those of magnitudes; leave it out, or name it under lora_modules_to_save to train it in full",
      source, std::ranges::find_if(targets.parts, is_head)->module);
}

std::vector<std::string> linear_names(const model::ModelConfig& model) { return Finder({}, model, {}).linear_names(); }

}  // namespace inlay::adapter
