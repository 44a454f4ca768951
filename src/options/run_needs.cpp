#include "options/run_needs.h"

#include <algorithm>
#include <cctype>
#include <functional>

#include "core/text.h"
#include "data/dataset_files.h"
#include "data/formats/format.h"
#include "io/hub.h"
#include "io/paths.h"
#include "jinja/known_templates.h"
#include "options/added_tokens.h"

namespace inlay::options::option {

namespace {

using HubSearch = std::function<void(const io::HubAccess& access)>;

// Names of the hub that are to be downloaded wait until all else is known to be right.
class Downloads {
 public:
  explicit Downloads(const io::HubAccess& hub) : hub_(hub) {}

  // Searches now, with what is on this machine, or later with the hub.
  void find(const std::string& name, HubSearch search) {
    if (hub_.download && io::is_hub_name(name) && !io::exists(name)) {
      waiting_.push_back(std::move(search));
    } else {
      search({});
    }
  }
  void run() const {
    for (const HubSearch& search : waiting_) search(hub_);
  }

 private:
  const io::HubAccess& hub_;
  std::vector<HubSearch> waiting_;
};

class Needs {
 public:
  Needs(TrainOptions& options, const GivenKeys& given, Needed needed, const io::HubAccess& hub, KeyProblems& problems)
      : o_(options), given_(given), needed_(needed), problems_(problems), downloads_(hub) {}

  void find() {
    o_.base_name = o_.base_model;
    model("base_model", o_.base_model, o_.revision_of_model);
    model("kd_teacher", o_.distillation.teacher, "");
    const std::vector<std::string>& calibration = o_.osft.calibration.data;
    if (std::ranges::find(calibration, "earlier") != calibration.end()) {
      problems_.add("osft.calibration.data",
                    "osft.calibration.data: earlier means the earlier tasks of a study (inlay continual); name the "
                    "files instead");
    }
    if (needed_ != Needed::models) {
      if (!problems_.is_wrong("chat_template")) {
        if (const std::string what = problem_of_template(o_.chat_template); !what.empty()) {
          problems_.add("chat_template", what);
        }
      }
      entries("datasets", o_.datasets);
      entries("test_datasets", o_.test_datasets);
    }
    if (problems_.none() && (missing_.empty() || needed_ != Needed::all)) downloads_.run();
    // A plan can do without data. Who hears of something else anyway hears of that as well.
    const bool refused = needed_ == Needed::all || !problems_.none();
    for (const std::string& what : missing_) {
      if (refused) {
        problems_.gather([&] { user_error("{}", what); });
      } else {
        o_.notes.push_back("warning: " + what);
      }
    }
  }

 private:
  void model(const std::string& key, std::string& folder, const std::string& revision) {
    if (folder.empty() || problems_.is_wrong(key)) return;
    downloads_.find(folder, [this, key, &folder, revision](const io::HubAccess& access) {
      try {
        folder = io::model_folder(folder, revision, access);
        if (!io::exists(folder)) user_error("{}: no such model folder", folder);
      } catch (const UserError& error) {
        problems_.add(key, fmt::format("{}: {}", key, error.what()));
      }
    });
  }

  void entries(const std::string& key, const std::vector<data::DatasetOptions>& list) {
    if (problems_.is_wrong(key)) return;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const data::DatasetOptions& dataset = list[i];
      if (const std::string what = problem_of_template(dataset.format.chat_template); !what.empty()) {
        const Place place = given_.place_of_entry(key, i, "chat_template");
        problems_.gather([&] { user_error("{}: {}.{}", place.where(), key, what); });
      }
      downloads_.find(data::is_loader(dataset.path) ? "" : dataset.path,
                      [this, key, i, &dataset](const io::HubAccess& access) { files(key, i, dataset, access); });
    }
  }

  void files(const std::string& key, std::size_t i, const data::DatasetOptions& dataset, const io::HubAccess& access) {
    try {
      if (dataset.path.ends_with('/') && !io::exists(dataset.path)) user_error("{}: no such folder", dataset.path);
      data::find_files(dataset, access);
    } catch (const UserError& error) {
      const std::string what = fmt::format("{}: {}: {}", given_.place_of_entry(key, i).where(), key, error.what());
      missing_.push_back(what);
    }
  }

  TrainOptions& o_;
  const GivenKeys& given_;
  Needed needed_;
  KeyProblems& problems_;
  Downloads downloads_;
  std::vector<std::string> missing_;  // data
};

std::string letters_of(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isalpha(c) == 0; });
  return text;
}

}  // namespace

void find_needs(TrainOptions& options, const GivenKeys& given, Needed needed, const io::HubAccess& hub,
                KeyProblems& problems) {
  Needs(options, given, needed, hub, problems).find();
}

std::string problem_of_template(const std::string& name) {
  constexpr std::string_view fallback = "tokenizer_default_fallback_";
  const std::string meant = name.starts_with(fallback) ? name.substr(fallback.size()) : name;
  try {
    data::template_text(meant, {});
    return {};
  } catch (const UserError& error) {
    if (meant.find_first_of("/.") != meant.npos) return error.what();  // a file, and no misspelled name
    std::vector<std::string> names = split(jinja::known_template_names(), ',');
    for (std::string& known : names) known.erase(0, known.find_first_not_of(' '));
    names.emplace_back("tokenizer_default");
    const std::string guess = nearest(meant, std::vector<std::string_view>(names.begin(), names.end()));
    // llama4 is no misspelled llama3, but another model's.
    const bool other_version = letters_of(guess) == letters_of(meant);
    return error.what() + did_you_mean(other_version ? "" : guess);
  }
}

void change_base(TrainOptions& options, const std::string& source) {
  TokenChanges changes{options.special_tokens, options.tokens};
  for (const char* unused : {"pad_token", "unk_token"}) changes.special.erase(unused);  // nothing is padded
  for (const auto& [name, token] : changes.special) {
    if (!name.ends_with("_token")) {
      user_error("{}: special_tokens: {} is not the name of a special token, such as eos_token", source, name);
    }
    if (token.empty()) user_error("{}: special_tokens: {} is empty, expected the token's text", source, name);
  }
  if (changes.none()) return;
  const ChangedModel changed = change_tokens(options.base_model, changes);
  if (!changed.known.empty()) {
    options.notes.push_back(fmt::format("tokens: the tokenizer already has {}", join(changed.known, ", ")));
  }
  const std::vector<std::string>& saved = options.adapter.modules_to_save;
  if (!changed.new_tokens.empty() && options.adapter.enabled() &&
      std::ranges::find(saved, "embed_tokens") == saved.end()) {
    user_error(
        "{}: the model does not have {}, and an adapter leaves the embeddings as they are, so new tokens would never "
        "be learned; write lora_modules_to_save: [embed_tokens, lm_head], or leave the tokens out",
        source, join(changed.new_tokens, ", "));
  }
  options.base_model = changed.folder;
  if (!changed.new_tokens.empty()) {
    const std::string room = changed.rows_added == 0
                                 ? ", for which the vocabulary has room"
                                 : fmt::format("; the vocabulary grows by {} as the mean of the others",
                                               counted(changed.rows_added, "row, which begins", "rows, which begin"));
    options.notes.push_back(counted(std::ssize(changed.new_tokens), "new token") + room);
  }
}

}  // namespace inlay::options::option
