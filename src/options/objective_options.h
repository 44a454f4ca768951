#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "data/answers.h"
#include "ops/divergence.h"

namespace inlay::options {

// How much a token counts by what the model itself says of it.
enum class TokenWeight : std::uint8_t { none, dft, eaft, talr, stm };

struct LossOptions {
  double label_smoothing = 0, z_loss = 0;
  std::optional<std::int64_t> chunk;  // absent: auto
  TokenWeight token_weight = TokenWeight::none;
  std::int64_t eaft_top_k = 20;
  std::optional<double> talr_temperature;  // absent: the mean loss of the micro-batch
  double talr_floor = 0.01;
  double stm_perplexity = 2.5;
  double kl_to_base = 0;
  ops::DivergenceKind kl_direction = ops::DivergenceKind::forward;
};

// Learning which answers are preferred; the keys are axolotl's.
enum class Rl : std::uint8_t { none, dpo, ipo, kto, orpo, simpo };
enum class DpoLoss : std::uint8_t { sigmoid, hinge, ipo };

struct PreferenceOptions {
  Rl rl = Rl::none;
  double beta = 0.1;
  DpoLoss dpo_loss_type = DpoLoss::sigmoid;
  double dpo_label_smoothing = 0, rpo_alpha = 0;
  double orpo_alpha = 0.1;
  double simpo_gamma = 0.5, cpo_alpha = 0;
  double kto_desirable_weight = 1, kto_undesirable_weight = 1;

  bool enabled() const { return rl != Rl::none; }
  // Whether the loss compares with the model as it was.
  bool needs_reference() const { return rl == Rl::dpo || rl == Rl::ipo || rl == Rl::kto; }
};

// Learning another model's predictions; the keys are axolotl's.
struct DistillationOptions {
  bool enabled = false;
  std::string teacher;   // folder; empty: what the data brings
  bool on_host = false;  // where the teacher's layers live
  double alpha = 1, ce_alpha = 0;
  double temperature = 1;
  double beta = 0;  // 0: forward, 1: reverse, between: Jensen-Shannon
  // What is learned from is what the model itself answers, before each step.
  bool on_policy = false;
  std::int64_t max_new_tokens = 512;
  double sampling_temperature = 1;
};

// Of what the model itself has written: the text, or what it would predict there if it saw the data's answer.
enum class SdftLearn : std::uint8_t { answers, predictions };
// Who sees the data's answer: the model that the run starts from, or the one in training.
enum class SdftTeacher : std::uint8_t { base, itself };

// Learning the data's answers in the model's own words.
struct SdftOptions {
  bool enabled = false;
  bool on_policy = false;  // by the model in training, before each step
  SdftLearn learn = SdftLearn::answers;
  SdftTeacher teacher = SdftTeacher::base;
  double beta = 1;                         // as DistillationOptions::beta
  std::string shown;                       // with {instruction} and {response}; empty: as published
  std::optional<data::AnswerMatch> match;  // absent: whatever is said
  std::string marker;
  std::int64_t max_new_tokens = 512;
  double temperature = 1, top_p = 1;

  bool predictions() const { return enabled && learn == SdftLearn::predictions; }
};

// How the model writes answers that it learns from.
struct AnswerWriting {
  std::string_view key;  // that asks for them, for messages
  bool shown = false;    // the data's answers are shown: to the model, or to the teacher whose predictions are learned
  bool predictions = false;  // of a teacher are learned, and not the answers
  std::int64_t max_new_tokens = 0;
  double temperature = 1, top_p = 1;
};

}  // namespace inlay::options
