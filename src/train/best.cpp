#include "train/best.h"

#include <cmath>

namespace inlay::train {

using options::Metric;

double Evaluated::value(Metric metric) const {
  switch (metric) {
    case Metric::eval_loss: return loss;
    case Metric::eval_perplexity: return std::exp(loss);
    case Metric::eval_accuracy: return accuracy;
  }
  return loss;
}

bool note_evaluation(const options::TrainOptions& options, const Evaluated& evaluated, Best& best) {
  if (!options.tracks_best() || evaluated.step <= 0) return false;
  const double now = evaluated.value(options.best_metric()), before = best.at.value(options.best_metric());
  const bool better = !best.at.known() || (options.wants_greater() ? now > before : now < before);
  const bool enough = !best.at.known() || (better && std::abs(now - before) > options.early_stopping_threshold);
  best.not_improved = enough ? 0 : best.not_improved + 1;
  if (better) best.at = evaluated;
  return better;
}

bool stops_early(const options::TrainOptions& options, const Best& best) {
  return options.early_stopping_patience > 0 && best.not_improved >= options.early_stopping_patience;
}

}  // namespace inlay::train
