#include "train/objective.h"

#include <optional>

#include "core/text.h"
#include "data/tokenizer/tokenizer.h"
#include "io/paths.h"
#include "model/families/family.h"
#include "objective/divergence.h"
#include "objective/preference.h"
#include "options/objective_fields.h"
#include "train/session.h"

namespace inlay::train {

namespace {

using options::DpoLoss;
using options::Rl;
using options::TokenWeight;

ops::PreferenceSpec preference_spec(const options::PreferenceOptions& o) {
  using Kind = ops::PreferenceKind;
  switch (o.rl) {
    case Rl::dpo: {
      const Kind kind = o.dpo_loss_type == DpoLoss::sigmoid ? Kind::sigmoid
                        : o.dpo_loss_type == DpoLoss::hinge ? Kind::hinge
                                                            : Kind::ipo;
      return {.kind = kind, .beta = o.beta, .label_smoothing = o.dpo_label_smoothing, .likelihood = o.rpo_alpha};
    }
    case Rl::ipo: return {.kind = Kind::ipo, .beta = o.beta, .likelihood = o.rpo_alpha};
    case Rl::simpo: return {.kind = Kind::simpo, .beta = o.beta, .gamma = o.simpo_gamma, .likelihood = o.cpo_alpha};
    case Rl::orpo: return {.kind = Kind::orpo, .beta = o.orpo_alpha, .likelihood = 1};
    case Rl::kto:
      return {.kind = Kind::kto,
              .beta = o.beta,
              .desirable = o.kto_desirable_weight,
              .undesirable = o.kto_undesirable_weight};
    case Rl::none: break;
  }
  INLAY_ASSERT(false, "no preferences are learned");
}

ops::TokenRule rule_of(TokenWeight weight) {
  switch (weight) {
    case TokenWeight::none:
    case TokenWeight::stm: return ops::TokenRule::none;  // stm: the data has lost its labels already
    case TokenWeight::dft: return ops::TokenRule::dft;
    case TokenWeight::eaft: return ops::TokenRule::eaft;
    case TokenWeight::talr: return ops::TokenRule::talr;
  }
  INLAY_ASSERT(false, "an unknown weight of tokens");
}

// beta: 0 and 1 are the two directions, what lies between is a mixture of them.
ops::DivergenceSpec divergence_spec(double beta, ops::DivergenceSpec spec) {
  using Kind = ops::DivergenceKind;
  spec.kind = beta == 0 ? Kind::forward : beta == 1 ? Kind::reverse : Kind::jensen_shannon;
  spec.beta = static_cast<float>(beta);
  return spec;
}

ops::DivergenceSpec distillation_spec(const options::DistillationOptions& o) {
  return divergence_spec(o.beta, {.temperature = static_cast<float>(o.temperature),
                                  .weight = static_cast<float>(o.alpha),
                                  .ce_weight = static_cast<float>(o.ce_alpha)});
}

// Heads of a family are padded to different sizes. Of a larger one only the rows that the model has too are read; the
// others belong to no token (check_teacher).
model::ModelConfig teacher_config(const options::TrainOptions& o) {
  model::ModelConfig teacher = model::load_config(o.distillation.teacher);
  const std::int64_t vocab = config_of(o).vocab;
  if (teacher.vocab > vocab) teacher.vocab_in_file = std::exchange(teacher.vocab, vocab);
  return teacher;
}

// Nothing where there is none, or one that is not read here: data of tokens does without.
std::optional<data::Tokenizer> tokenizer_of(const std::filesystem::path& model) {
  if (!io::is_file(model / "tokenizer.json")) return std::nullopt;
  try {
    return data::Tokenizer::load(model);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

// Special tokens may have other names in another model: they stand for the same where they have the same number.
void check_same_tokens(const std::filesystem::path& teacher, const std::filesystem::path& student) {
  const auto theirs = tokenizer_of(teacher), ours = tokenizer_of(student);
  if (!theirs || !ours) return;
  for (std::int32_t id = 0; id < std::min(theirs->vocab_size(), ours->vocab_size()); ++id) {
    if (theirs->is_special(id) || ours->is_special(id)) continue;
    const auto their_text = theirs->text(id), our_text = ours->text(id);
    if (!their_text || !our_text || *their_text == *our_text) continue;
    user_error("kd_teacher: token {} is '{}' in {}, but '{}' in {}; a teacher must have the model's vocabulary", id,
               *their_text, teacher.string(), *our_text, student.string());
  }
}

}  // namespace

void check_teacher(const options::TrainOptions& o, const model::ModelConfig& config) {
  const std::string& teacher = o.distillation.teacher;
  if (!o.distillation.enabled || teacher.empty()) return;
  const std::int64_t vocab = model::load_config(teacher).vocab;
  const auto tokens = vocab > config.vocab ? tokenizer_of(teacher) : std::nullopt;
  if (vocab < config.vocab || (vocab > config.vocab && (!tokens || tokens->vocab_size() > config.vocab))) {
    user_error("kd_teacher: {} has a vocabulary of {}, and {} one of {}; a teacher must have the model's{}", teacher,
               format_count(vocab), o.base_model, format_count(config.vocab),
               vocab < config.vocab ? ""
               : tokens             ? ", but for rows of its head that no token has"
                        : ", but for rows of its head that no token has, which only a tokenizer.json shows");
  }
  check_same_tokens(teacher, o.base_model);
}

void set_objective(const options::TrainOptions& o, EngineOptions& engine) {
  engine.loss = {.label_smoothing = o.loss.label_smoothing,
                 .z_loss = o.loss.z_loss,
                 .rule = {.rule = rule_of(o.loss.token_weight),
                          .most_likely = static_cast<std::int32_t>(o.loss.eaft_top_k),
                          .least = static_cast<float>(o.loss.talr_floor)},
                 .rule_temperature = o.loss.talr_temperature.value_or(0)};
  engine.row_losses = engine.row_losses || o.loss.token_weight == TokenWeight::stm;
  if (o.preference.enabled()) {
    engine.objective = std::make_shared<objective::PreferenceKind>(preference_spec(o.preference));
    engine.roles = o.preference.rl == Rl::kto ? std::vector{SequenceRole::desirable, SequenceRole::mismatched}
                                              : std::vector{SequenceRole::chosen, SequenceRole::rejected};
    engine.reference = o.preference.needs_reference();
    engine.row_losses = engine.row_losses || engine.reference;
  } else if (o.loss.kl_to_base > 0) {
    engine.objective = std::make_shared<objective::DivergenceKind>(
        ops::DivergenceSpec{.kind = o.loss.kl_direction, .weight = static_cast<float>(o.loss.kl_to_base)},
        "kl_to_base");
    engine.other.wanted = true;
  } else if (o.sdft.predictions()) {
    engine.objective =
        std::make_shared<objective::DivergenceKind>(divergence_spec(o.sdft.beta, {.ce_weight = 0}), "divergence");
    engine.other = {.wanted = true, .itself = o.sdft.teacher == options::SdftTeacher::itself};
  } else if (o.distillation.enabled) {
    engine.objective = std::make_shared<objective::DivergenceKind>(distillation_spec(o.distillation), "kd_loss");
    if (o.distillation.teacher.empty()) return;
    engine.other = {.wanted = true, .config = teacher_config(o), .on_host = o.distillation.on_host};
  }
}

namespace {

// ", rl_beta 0.1", of those keys that bear on the objective and are not as they are by themselves.
std::string changed_keys(const options::TrainOptions& o, std::initializer_list<const char*> keys) {
  std::string text;
  for (const char* key : keys) {
    const std::string value = options::value_text(o, key);
    if (!options::option::serves_objective(o, key) || value == options::value_text({}, key)) continue;
    text += fmt::format(", {} {}", key, value);
  }
  return text;
}

}  // namespace

std::string objective_text(const options::TrainOptions& o) {
  const auto value = [&](std::string_view key) { return options::value_text(o, key); };
  if (o.preference.enabled()) {
    const std::string kind = o.preference.rl == Rl::dpo ? fmt::format(" ({})", value("dpo_loss_type")) : "";
    return fmt::format("objective: preferences by {}{}{}", value("rl"), kind,
                       changed_keys(o, {"rl_beta", "dpo_label_smoothing", "rpo_alpha", "orpo_alpha", "simpo_gamma",
                                        "cpo_alpha", "kto_desirable_weight", "kto_undesirable_weight"}));
  }
  if (o.distillation.enabled) {
    return fmt::format("objective: distillation from {}{}, beta {}, temperature {}{}",
                       o.distillation.teacher.empty() ? "log-probabilities in the data" : o.distillation.teacher,
                       o.distillation.on_policy ? " on the model's own answers" : "", o.distillation.beta,
                       o.distillation.temperature, changed_keys(o, {"kd_alpha", "kd_ce_alpha"}));
  }
  if (o.sdft.predictions()) {
    return fmt::format("objective: predictions of {} that is shown the answers, beta {}",
                       o.sdft.teacher == options::SdftTeacher::itself ? "the model itself" : "the base model",
                       o.sdft.beta);
  }
  std::string text;
  if (o.loss.token_weight != TokenWeight::none) {
    text = fmt::format("tokens weighted by {}", value("loss.token_weight"));
    text += changed_keys(o, {"loss.eaft_top_k", "loss.talr_temperature", "loss.talr_floor", "loss.stm_perplexity"});
  }
  if (o.loss.kl_to_base > 0) {
    text += fmt::format("{}{} · divergence from the base model ({})", text.empty() ? "" : ", ", o.loss.kl_to_base,
                        value("loss.kl_direction"));
  }
  return text.empty() ? text : "objective: " + text;
}

}  // namespace inlay::train
