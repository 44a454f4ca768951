#include "objective/objective_fixture.h"

#include <fstream>

#include "io/checkpoint.h"
#include "support/paths.h"

namespace inlay::testing {

namespace {

using nlohmann::json;

ops::PreferenceSpec preference_of(const json& settings) {
  using Kind = ops::PreferenceKind;
  const std::map<std::string, Kind> kinds = {{"sigmoid", Kind::sigmoid}, {"hinge", Kind::hinge}, {"ipo", Kind::ipo},
                                             {"simpo", Kind::simpo},     {"orpo", Kind::orpo},   {"kto", Kind::kto}};
  return {.kind = kinds.at(settings.at("kind")),
          .beta = settings.at("beta"),
          .label_smoothing = settings.value("label_smoothing", 0.0),
          .gamma = settings.value("gamma", 0.0),
          .likelihood = settings.value("likelihood", 0.0),
          .desirable = settings.value("desirable", 1.0),
          .undesirable = settings.value("undesirable", 1.0)};
}

ops::DivergenceSpec divergence_of(const json& settings) {
  using Kind = ops::DivergenceKind;
  const std::map<std::string, Kind> kinds = {
      {"forward", Kind::forward}, {"reverse", Kind::reverse}, {"jensen_shannon", Kind::jensen_shannon}};
  return {.kind = kinds.at(settings.at("kind")),
          .beta = settings.at("beta"),
          .temperature = settings.at("temperature"),
          .weight = settings.at("weight"),
          .ce_weight = settings.at("ce_weight")};
}

model::LossSettings rule_of(const std::string& rule) {
  model::LossSettings settings;
  if (rule == "dft") settings.rule.rule = ops::TokenRule::dft;
  if (rule.starts_with("eaft")) settings.rule.rule = ops::TokenRule::eaft;
  if (rule == "eaft_5") settings.rule.most_likely = 5;
  if (rule.starts_with("talr")) settings.rule.rule = ops::TokenRule::talr;
  if (rule == "talr_2") settings.rule_temperature = 2, settings.rule.least = 0.1f;
  return settings;
}

// Prompt and answer, of which the answer has labels; those of prompts count for nothing where they have some.
void add_sequence(Document& document, SequenceRole role, const std::vector<std::int32_t>& prompt,
                  const std::vector<std::int32_t>& answer, bool prompt_labels) {
  const std::size_t begin = document.labels.size();
  for (const std::int32_t token : prompt) {
    document.input_ids.push_back(token);
    document.labels.push_back(prompt_labels ? token : ignore_label);
    document.weights.push_back(0.0f);
  }
  for (const std::int32_t token : answer) {
    document.input_ids.push_back(token);
    document.labels.push_back(token);
    document.weights.push_back(1.0f);
  }
  document.labels[begin] = sequence_mark(role);
}

std::int64_t longest(const PackedBatch& batch) {
  std::int64_t most = 0;
  for (std::size_t s = 1; s < batch.cu_seqlens.size(); ++s) {
    most = std::max<std::int64_t>(most, batch.cu_seqlens[s] - batch.cu_seqlens[s - 1]);
  }
  return most;
}

}  // namespace

ObjectiveFixture::ObjectiveFixture(const std::string& name)
    : folder(source_folder() / "tests/golden/objectives"), model(model_fixture(name)) {
  std::ifstream file(folder / name / "cases.json");
  cases = json::parse(file);
}

std::vector<std::string> ObjectiveFixture::names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : cases.at("cases").items()) names.push_back(name);
  return names;
}

std::vector<Document> ObjectiveFixture::documents(const std::string& name) const {
  const json& settings = at(name).at("settings");
  const std::string kind = settings.value("kind", "");
  std::vector<Document> documents;
  if (kind == "kto") {
    for (const json& row : cases.at("judged")) {
      Document document;
      add_sequence(document, row.at("label") ? SequenceRole::desirable : SequenceRole::undesirable, row.at("prompt"),
                   row.at("answer"), false);
      add_sequence(document, SequenceRole::mismatched, row.at("prompt"), row.at("mismatched"), false);
      document.reference = {row.at("reference"), row.at("mismatched_reference")};
      documents.push_back(std::move(document));
    }
  } else if (settings.contains("shown")) {
    for (const json& row : cases.at("demonstrated")) {
      Document document{.input_ids = row.at("prompt"), .labels = {}, .others_prompt = row.at("shown")};
      document.labels.assign(document.input_ids.size(), ignore_label);
      for (const std::int32_t token : row.at("answer")) {
        document.input_ids.push_back(token);
        document.labels.push_back(token);
      }
      documents.push_back(std::move(document));
    }
  } else if (!settings.contains("rule") && !settings.contains("temperature")) {
    for (const json& row : cases.at("pairs")) {
      Document document;
      add_sequence(document, SequenceRole::chosen, row.at("prompt"), row.at("chosen"), kind == "orpo");
      add_sequence(document, SequenceRole::rejected, row.at("prompt"), row.at("rejected"), false);
      document.reference = {row.at("chosen_reference"), row.at("rejected_reference")};
      documents.push_back(std::move(document));
    }
  } else {
    for (const json& row : cases.at("documents")) {
      documents.push_back({.input_ids = row.at("input_ids"), .labels = row.at("labels")});
    }
    if (!name.starts_with("kd_kept")) return documents;
    for (std::size_t d = 0; d < documents.size(); ++d) {
      KeptPredictions& kept = documents[d].kept;
      kept.per_token = 7;
      for (const json& entry : cases.at("kept")[d]) {
        for (std::size_t k = 0; k < 7; ++k) {
          const bool known = k < entry.at("ids").size();
          kept.ids.push_back(known ? entry.at("ids")[k].get<std::int32_t>() : -1);
          kept.log_probs.push_back(known ? entry.at("log_probs")[k].get<float>() : 0.0f);
        }
      }
    }
  }
  return documents;
}

std::unique_ptr<train::Engine> ObjectiveFixture::engine(const std::string& name, train::EngineOptions options) const {
  const json& settings = at(name).at("settings");
  std::filesystem::path teacher;
  if (settings.contains("rule")) {
    const std::int64_t chunk = options.loss.chunk;
    options.loss = rule_of(settings.at("rule"));
    options.loss.chunk = chunk;
  } else if (settings.contains("temperature")) {
    options.objective = std::make_shared<objective::DivergenceKind>(divergence_of(settings), "divergence");
    if (name.starts_with("kd_kept")) {
      options.kept_predictions = 7;
    } else if (settings.contains("shown")) {
      options.other.wanted = true;
    } else {
      teacher = folder / fmt::format("teacher_{}", model.config.vocab);
      options.other = {.wanted = true, .config = inlay::model::load_config(teacher), .on_host = options.other.on_host};
    }
  } else {
    options.objective = std::make_shared<objective::PreferenceKind>(preference_of(settings));
    options.reference = true;
    options.roles = settings.at("kind") == "kto" ? std::vector{SequenceRole::desirable, SequenceRole::mismatched}
                                                 : std::vector{SequenceRole::chosen, SequenceRole::rejected};
  }
  const PackedBatch batch = pack(documents(name));
  options.max_tokens = std::max(options.max_tokens, batch.token_count());
  options.max_document = std::max(options.max_document, longest(batch));
  for (const PackedBatch& others : batch.others) {
    options.others_tokens = others.token_count();
    options.others_document = longest(others);
  }
  auto engine = train::Engine::create(model.config, options);
  engine->load(io::Checkpoint(model.folder));
  if (engine->other() != nullptr) {
    engine->load_other(io::Checkpoint(teacher.empty() ? std::filesystem::path(model.folder) : teacher));
  }
  return engine;
}

std::vector<double> ObjectiveFixture::gradient(const std::string& name, const std::string& key) const {
  const io::SafetensorsFile file(folder / cases.at("model").get<std::string>() / (name + ".safetensors"));
  const ConstView view = file.tensor(key);
  return {view.as<float>(), view.as<float>() + view.size()};
}

}  // namespace inlay::testing
