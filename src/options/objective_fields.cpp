#include "options/objective_fields.h"

#include <limits>

#include "core/text.h"

namespace inlay::options::option {

namespace {

using ops::DivergenceKind;

// Which of the preference losses each key is for.
struct PreferenceKey {
  std::string_view name;
  std::vector<Rl> losses;
};
const std::vector<PreferenceKey>& preference_keys() {
  static const std::vector<PreferenceKey> keys = {{"rl_beta", {Rl::dpo, Rl::ipo, Rl::kto, Rl::simpo}},
                                                  {"dpo_loss_type", {Rl::dpo}},
                                                  {"dpo_label_smoothing", {Rl::dpo}},
                                                  {"rpo_alpha", {Rl::dpo, Rl::ipo}},
                                                  {"orpo_alpha", {Rl::orpo}},
                                                  {"simpo_gamma", {Rl::simpo}},
                                                  {"cpo_alpha", {Rl::simpo}},
                                                  {"kto_desirable_weight", {Rl::kto}},
                                                  {"kto_undesirable_weight", {Rl::kto}}};
  return keys;
}

constexpr std::pair<const char*, Rl> losses[] = {{"none", Rl::none}, {"dpo", Rl::dpo},   {"ipo", Rl::ipo},
                                                 {"kto", Rl::kto},   {"orpo", Rl::orpo}, {"simpo", Rl::simpo}};

std::string names_of(const std::vector<Rl>& wanted) {
  std::vector<std::string> names;
  for (const auto& [name, value] : losses) {
    if (std::ranges::find(wanted, value) != wanted.end()) names.emplace_back(name);
  }
  return join(names, ", ");
}

bool is_given(const Field& field, const TrainOptions& options) {
  static const TrainOptions defaults;
  YAML::Emitter given, otherwise;
  field.emit(options, given);
  field.emit(defaults, otherwise);
  return std::string(given.c_str()) != otherwise.c_str();
}

}  // namespace

const std::vector<Field>& objective_fields() {
  constexpr double infinity = std::numeric_limits<double>::infinity();
#define INLAY_MEMBER(path) \
  [](auto& o) -> auto& { return o.path; }  // NOLINT(bugprone-macro-parentheses)
  static const std::vector<Field> table = {
      number("loss.label_smoothing", INLAY_MEMBER(loss.label_smoothing), 0, 0.999999,
             "share of every label that is spread over the whole vocabulary, in training"),
      number("loss.z_loss", INLAY_MEMBER(loss.z_loss), 0, infinity,
             "factor of the squared logarithm of the softmax's sum, added to the loss in training"),
      or_auto("loss.chunk", INLAY_MEMBER(loss.chunk), 1,
              "rows of logits that exist at once; auto: the fastest number, fewer if memory is short"),
      choice("loss.token_weight", INLAY_MEMBER(loss.token_weight),
             {{"none", TokenWeight::none},
              {"dft", TokenWeight::dft},
              {"eaft", TokenWeight::eaft},
              {"talr", TokenWeight::talr},
              {"stm", TokenWeight::stm}},
             "what a token's loss is multiplied by, from the model's own prediction: dft: its probability; eaft: the "
             "prediction's entropy; talr: a power of its probability; stm: 0 where the base model finds it surprising "
             "(docs/objectives.md)"),
      integer("loss.eaft_top_k", INLAY_MEMBER(loss.eaft_top_k), 2, "eaft: the largest probabilities that it looks at"),
      or_auto("loss.talr_temperature", INLAY_MEMBER(loss.talr_temperature), 0.0001,
              "talr: the probability's power is 1 / this; auto: the mean loss of the micro-batch's labels"),
      number("loss.talr_floor", INLAY_MEMBER(loss.talr_floor), 0, 1, "talr: the least weight"),
      number("loss.stm_perplexity", INLAY_MEMBER(loss.stm_perplexity), 1, infinity,
             "stm: the largest perplexity (1 / probability, by the base model) of tokens that are learned"),
      number("loss.kl_to_base", INLAY_MEMBER(loss.kl_to_base), 0, infinity,
             "factor of the divergence from the base model's prediction, added to the loss in training"),
      choice("loss.kl_direction", INLAY_MEMBER(loss.kl_direction),
             {{"forward", DivergenceKind::forward}, {"reverse", DivergenceKind::reverse}},
             "forward: KL(base, model), which keeps what the base model might say; reverse: KL(model, base)"),
      choice("rl", INLAY_MEMBER(preference.rl), {std::begin(losses), std::end(losses)},
             "learn which answers are preferred, from rows with a chosen and a rejected one; kto: from judged answers "
             "(docs/objectives.md)"),
      number("rl_beta", INLAY_MEMBER(preference.beta), 0, infinity,
             "dpo, ipo, kto: how closely the model stays to what it was; simpo: the scale of the rewards"),
      choice("dpo_loss_type", INLAY_MEMBER(preference.dpo_loss_type),
             {{"sigmoid", DpoLoss::sigmoid}, {"hinge", DpoLoss::hinge}, {"ipo", DpoLoss::ipo}}, "dpo: the loss"),
      number("dpo_label_smoothing", INLAY_MEMBER(preference.dpo_label_smoothing), 0, 0.499999,
             "dpo with sigmoid: share of pairs that may be the wrong way round"),
      number("rpo_alpha", INLAY_MEMBER(preference.rpo_alpha), 0, infinity,
             "dpo, ipo: factor of the chosen answers' own loss, added to it"),
      number("orpo_alpha", INLAY_MEMBER(preference.orpo_alpha), 0, infinity,
             "orpo: factor of the odds ratio's loss, which is added to the chosen answers' own"),
      number("simpo_gamma", INLAY_MEMBER(preference.simpo_gamma), 0, infinity, "simpo: the margin between rewards"),
      number("cpo_alpha", INLAY_MEMBER(preference.cpo_alpha), 0, infinity,
             "simpo: factor of the chosen answers' own loss, added to it"),
      number("kto_desirable_weight", INLAY_MEMBER(preference.kto_desirable_weight), 0, infinity,
             "kto: factor of the loss of desirable answers"),
      number("kto_undesirable_weight", INLAY_MEMBER(preference.kto_undesirable_weight), 0, infinity,
             "kto: factor of the loss of the others"),
      boolean("kd_trainer", INLAY_MEMBER(distillation.enabled), "learn another model's predictions"),
      optional_text("kd_teacher", INLAY_MEMBER(distillation.teacher), "folder or name on the hub",
                    "the model to learn from, with the same vocabulary; empty: the log-probabilities in the data"),
      choice("kd_teacher_on", INLAY_MEMBER(distillation.on_host), {{"device", false}, {"host", true}},
             "where the teacher's layers live; on the host they are copied to the device for every use"),
      number("kd_alpha", INLAY_MEMBER(distillation.alpha), 0, infinity, "factor of the divergence from the teacher"),
      number("kd_ce_alpha", INLAY_MEMBER(distillation.ce_alpha), 0, infinity, "factor of the labels' own loss"),
      number("kd_temperature", INLAY_MEMBER(distillation.temperature), 0.0001, infinity,
             "what both models' logits are divided by; the divergence is multiplied by its square"),
      number("kd_beta", INLAY_MEMBER(distillation.beta), 0, 1,
             "0: KL(teacher, model); 1: KL(model, teacher); between: the generalised Jensen-Shannon divergence"),
      boolean("kd_on_policy", INLAY_MEMBER(distillation.on_policy),
              "learn the teacher's predictions of what the model in training answers to the prompts, before each step, "
              "not of the data's answers"),
      integer("kd_max_new_tokens", INLAY_MEMBER(distillation.max_new_tokens), 1,
              "kd_on_policy: maximum number of tokens of an answer; longer ones are cut"),
      number("kd_sampling_temperature", INLAY_MEMBER(distillation.sampling_temperature), 0, 1e6,
             "kd_on_policy: temperature of the model's answers; 0: always the likeliest token"),
      boolean("sdft.enabled", INLAY_MEMBER(sdft.enabled),
              "the base model rewrites every answer of the data in its own words before it is learned "
              "(docs/objectives.md)"),
      boolean("sdft.on_policy", INLAY_MEMBER(sdft.on_policy),
              "the answers of each step are written just before it, by the model in training, not all at the start by "
              "the base model"),
      choice("sdft.learn", INLAY_MEMBER(sdft.learn),
             {{"answers", SdftLearn::answers}, {"predictions", SdftLearn::predictions}},
             "answers: the model is shown the data's answer, and what it writes is learned like any text; predictions "
             "(on policy): it answers the prompt alone, and learns what a teacher that is shown the data's answer "
             "predicts for each token"),
      choice(
          "sdft.teacher", INLAY_MEMBER(sdft.teacher), {{"base", SdftTeacher::base}, {"itself", SdftTeacher::itself}},
          "the teacher of predictions: the base model, without any adapter, or the model in training, which needs no "
          "second copy of the weights"),
      number("sdft.beta", INLAY_MEMBER(sdft.beta), 0, 1,
             "for predictions: 0: KL(teacher, model); 1: KL(model, teacher); between: the generalised Jensen-Shannon "
             "divergence"),
      optional_text("sdft.template", INLAY_MEMBER(sdft.shown), "text with {instruction} and {response}",
                    "how the model is shown an answer; empty: as in the method's paper"),
      choice("sdft.match", INLAY_MEMBER(sdft.match),
             {{"none", std::nullopt},
              {"whole", data::AnswerMatch::whole},
              {"contains", data::AnswerMatch::contains},
              {"number", data::AnswerMatch::number}},
             "what it writes must agree with the data's answer, which is learned otherwise. whole: the same text; "
             "contains: it contains that text; number: the same last number"),
      optional_text("sdft.marker", INLAY_MEMBER(sdft.marker), "text",
                    "sdft.match compares what follows the last of these in both answers"),
      integer("sdft.max_new_tokens", INLAY_MEMBER(sdft.max_new_tokens), 1,
              "maximum number of tokens of an answer; if it is longer, the data's own is learned instead, or with "
              "predictions its beginning"),
      number("sdft.temperature", INLAY_MEMBER(sdft.temperature), 0, 1e6, "0: always the likeliest token"),
      number("sdft.top_p", INLAY_MEMBER(sdft.top_p), 0.0001, 1,
             "sample from the fewest likeliest tokens that have this much probability"),
  };
#undef INLAY_MEMBER
  return table;
}

bool serves_objective(const TrainOptions& options, const std::string& key) {
  for (const PreferenceKey& known : preference_keys()) {
    if (known.name == key) return std::ranges::find(known.losses, options.preference.rl) != known.losses.end();
  }
  if (key.starts_with("sdft.")) return options.sdft.enabled || key == "sdft.enabled";
  return !key.starts_with("kd_") || key == "kd_trainer" || options.distillation.enabled;
}

namespace {

bool learns_prompts(const TrainOptions& o) {
  return o.train_on_inputs ||
         std::ranges::any_of(o.datasets, [](const auto& dataset) { return dataset.format.train_on_inputs; });
}

// The data's answers are not learned, so nothing of their own loss is.
template <class Refuse>
void validate_on_policy(const TrainOptions& o, const Refuse& refuse) {
  const DistillationOptions& kd = o.distillation;
  if (!kd.on_policy) {
    refuse(kd.max_new_tokens != 512, "kd_max_new_tokens", "is for kd_on_policy: true");
    refuse(kd.sampling_temperature != 1, "kd_sampling_temperature", "is for kd_on_policy: true");
    return;
  }
  refuse(kd.teacher.empty(), "kd_on_policy",
         "needs kd_teacher: predictions in the data are not of what the model answers");
  refuse(kd.ce_alpha > 0, "kd_ce_alpha", "is for the labels' own loss, and kd_on_policy: true learns no labels");
  refuse(o.loss.token_weight == TokenWeight::stm, "loss.token_weight",
         "is for labels, and kd_on_policy: true learns none; leave one of them out");
  refuse(kd.sampling_temperature > 0 && kd.sampling_temperature < 1e-6, "kd_sampling_temperature",
         "must be 0, or 1e-6 or more");
  refuse(o.sdft.enabled, "sdft", "does not go with kd_on_policy: answers are written once");
  refuse(learns_prompts(o), "train_on_inputs",
         "does not go with kd_on_policy: if prompts are learned too, nothing shows where the answer begins");
  refuse(o.excess_length_strategy == data::Oversized::split, "excess_length_strategy",
         "split does not go with kd_on_policy: parts have no prompts; use truncate, drop or raise");
}

// sdft.learn: predictions has no labels of its own, and one teacher.
template <class Refuse>
void validate_predictions(const TrainOptions& o, const Refuse& refuse) {
  if (!o.sdft.predictions()) {
    refuse(o.sdft.teacher != SdftTeacher::base, "sdft.teacher", "is for sdft.learn: predictions");
    refuse(o.sdft.beta != 1, "sdft.beta", "is for sdft.learn: predictions");
    return;
  }
  constexpr std::string_view labels =
      "is for a loss of labels, and sdft.learn: predictions has none; leave one of them out";
  refuse(!o.sdft.on_policy, "sdft.learn",
         "predictions is for answers of the model in training; add sdft.on_policy: true");
  refuse(o.sdft.match.has_value(), "sdft.match",
         "is for sdft.learn: answers; predictions are learned whatever the answer says");
  refuse(o.loss.token_weight != TokenWeight::none, "loss.token_weight", labels);
  refuse(o.loss.label_smoothing > 0, "loss.label_smoothing", labels);
  refuse(o.loss.z_loss > 0, "loss.z_loss", labels);
  refuse(o.loss.kl_to_base > 0, "loss.kl_to_base",
         "does not go with sdft.learn: predictions: one model is learned from at a time");
  refuse(o.distillation.enabled, "kd_trainer",
         "does not go with sdft.learn: predictions: one model is learned from at a time");
  refuse(o.excess_length_strategy == data::Oversized::split, "excess_length_strategy",
         "split does not go with sdft.learn: predictions: parts have no prompts; use truncate, drop or raise");
}

}  // namespace

void validate_objective(const TrainOptions& o, KeyProblems& problems) {
  for (const Field& field : objective_fields()) {
    if (serves_objective(o, field.name) || !is_given(field, o)) continue;
    std::string use;
    if (field.name.starts_with("sdft.")) {
      use = "self-distillation; add sdft.enabled: true, or leave it out";
    } else if (field.name.starts_with("kd_")) {
      use = "distillation; add kd_trainer: true, or leave it out";
    } else {
      const auto known = std::ranges::find(preference_keys(), field.name, &PreferenceKey::name);
      use = fmt::format("rl: {}; leave it out, or change rl", names_of(known->losses));
    }
    problems.add(field.name, fmt::format("{} is for {}", field.name, use));
  }
  const LossOptions& loss = o.loss;
  const auto refuse = [&](bool wrong, const std::string& key, std::string_view why) {
    problems.add_if(wrong, key, fmt::format("{} {}", key, why));
  };
  refuse(loss.eaft_top_k != 20 && loss.token_weight != TokenWeight::eaft, "loss.eaft_top_k",
         "is for loss.token_weight: eaft");
  refuse(loss.talr_temperature && loss.token_weight != TokenWeight::talr, "loss.talr_temperature",
         "is for loss.token_weight: talr");
  refuse(loss.talr_floor != 0.01 && loss.token_weight != TokenWeight::talr, "loss.talr_floor",
         "is for loss.token_weight: talr");
  refuse(loss.stm_perplexity != 2.5 && loss.token_weight != TokenWeight::stm, "loss.stm_perplexity",
         "is for loss.token_weight: stm");
  refuse(loss.kl_direction != DivergenceKind::forward && loss.kl_to_base == 0, "loss.kl_direction",
         "needs loss.kl_to_base");
  if (o.preference.enabled()) {
    constexpr std::string_view sequences = "does not go with rl, whose losses are of whole answers; leave it out";
    refuse(loss.token_weight != TokenWeight::none, "loss.token_weight", sequences);
    refuse(loss.label_smoothing > 0, "loss.label_smoothing", sequences);
    refuse(loss.z_loss > 0, "loss.z_loss", sequences);
    refuse(loss.kl_to_base > 0, "loss.kl_to_base", "does not go with rl, which has rl_beta for it; leave it out");
    refuse(o.distillation.enabled, "kd_trainer", "does not go with rl; leave one of them out");
    refuse(o.train_on_inputs, "train_on_inputs", "does not go with rl: prompts have no preferences; leave it out");
    refuse(o.excess_length_strategy == data::Oversized::split, "excess_length_strategy",
           "split does not go with rl: answers are judged as wholes; use truncate, drop or raise");
    refuse(!(o.preference.beta > 0), "rl_beta", "must be above 0");
    refuse(o.preference.dpo_label_smoothing > 0 && o.preference.dpo_loss_type != DpoLoss::sigmoid,
           "dpo_label_smoothing", "is for dpo_loss_type: sigmoid");
  }
  if (o.sdft.enabled) {
    for (const char* word : {"{instruction}", "{response}"}) {
      refuse(!o.sdft.shown.empty() && o.sdft.shown.find(word) == std::string::npos, "sdft.template",
             fmt::format("must have {} in it", word));
    }
    refuse(!o.sdft.marker.empty() && !o.sdft.match, "sdft.marker", "needs sdft.match");
    validate_predictions(o, refuse);
    refuse(o.sdft.temperature > 0 && o.sdft.temperature < 1e-6, "sdft.temperature", "must be 0, or 1e-6 or more");
    refuse(o.sdft.top_p < 1 && o.sdft.temperature == 0, "sdft.top_p", "is for sampling: sdft.temperature above 0");
    refuse(learns_prompts(o), "train_on_inputs",
           "does not go with sdft: where prompts are learned as well, nothing tells where the answer begins");
    refuse(o.preference.enabled(), "sdft", "does not go with rl, whose answers are judged as they are");
    refuse(o.distillation.enabled && o.distillation.teacher.empty(), "sdft",
           "does not go with predictions that the data brings: they are of other answers; name a kd_teacher");
    refuse(o.sdft.on_policy && loss.token_weight == TokenWeight::stm, "loss.token_weight",
           "stm masks tokens before the first step, when the answers of sdft.on_policy are not written yet; use dft, "
           "eaft or talr");
  }
  if (o.distillation.enabled) {
    refuse(loss.kl_to_base > 0, "loss.kl_to_base", "does not go with kd_trainer: one model is learned from at a time");
    refuse(!(o.distillation.alpha > 0), "kd_alpha", "must be above 0: without it nothing is distilled");
    if (o.distillation.ce_alpha == 0) {
      constexpr std::string_view labels =
          "is for the labels' own loss, of which kd_ce_alpha: 0 takes nothing; raise it";
      // stm takes labels away, and with them their divergence.
      const bool weighted = loss.token_weight != TokenWeight::none && loss.token_weight != TokenWeight::stm;
      refuse(weighted, "loss.token_weight", labels);
      refuse(loss.label_smoothing > 0, "loss.label_smoothing", labels);
      refuse(loss.z_loss > 0, "loss.z_loss", labels);
    }
    validate_on_policy(o, refuse);
    refuse(o.distillation.on_host && o.distillation.teacher.empty(), "kd_teacher_on", "needs kd_teacher");
    refuse(o.distillation.teacher.empty() && o.distillation.beta == 1, "kd_beta",
           "1 needs kd_teacher: where the data has no probability, KL(model, teacher) is infinite");
  }
}

}  // namespace inlay::options::option
