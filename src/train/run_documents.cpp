#include "train/run_documents.h"

#include <algorithm>

#include "core/text.h"
#include "train/on_policy.h"
#include "train/self_distillation.h"

namespace inlay::train {

namespace {

void describe_data(const data::BatchSampler& sampler, Console& console) {
  console.line(fmt::format("data: {}, {}, {} per epoch ({:.1f} % full)", counted(sampler.document_count(), "document"),
                           counted(sampler.tokens_per_epoch(), "token"),
                           counted(sampler.batches_per_epoch(0), "micro-batch"), 100 * sampler.efficiency(0)));
  if (sampler.truncated_documents() > 0) {
    console.line(fmt::format("data: {} longer than sequence_len and lost {}",
                             counted(sampler.truncated_documents(), "document was", "documents were"),
                             counted(sampler.truncated_tokens(), "token")));
  }
  if (sampler.split_documents() > 0) {
    console.line(fmt::format("data: {} longer than sequence_len and split",
                             counted(sampler.split_documents(), "document was", "documents were")));
  }
  if (sampler.dropped_documents() > 0) {
    console.line(fmt::format("data: {} longer than sequence_len and dropped",
                             counted(sampler.dropped_documents(), "document was", "documents were")));
  }
  if (sampler.unlabelled_pieces() > 0) {
    console.line(
        fmt::format("data: {} left out",
                    counted(sampler.unlabelled_pieces(),
                            "document, or part of one, holds nothing to learn within sequence_len and was",
                            "documents, or parts of them, hold nothing to learn within sequence_len and were")));
  }
}

// Evaluation reads no further than training does.
void clip(std::vector<Document>& documents, std::int64_t length, Console& console) {
  const auto most = static_cast<std::size_t>(length);
  std::int64_t clipped = 0;
  for (Document& document : documents) {
    clipped += truncate(document, most) ? 1 : 0;
  }
  if (clipped > 0) {
    console.line(fmt::format("test data: {} cut to sequence_len", counted(clipped, "document was", "documents were")));
  }
}

// Rotary positions go on for ever, what a model has learned of them does not.
void warn_of_positions(std::int64_t longest, const model::ModelConfig& config, Console& console) {
  if (config.max_positions <= 0 || longest <= config.max_positions) return;
  console.line(fmt::format("note: documents have up to {} tokens, but config.json gives {} positions",
                           format_count(longest), format_count(config.max_positions)));
}

}  // namespace

RunDocuments::RunDocuments(const options::TrainOptions& options, const model::ModelConfig& config, Console& console)
    : data_(options.on_policy()    ? read_to_rewrite(options, config.vocab, console)
            : options.sdft.enabled ? read_rewritten(options, config, console)
                                   : read_run_data(options, config.vocab, console)),
      test_(data_.test.read_all()),
      sampler_(data_.train, batch_options(options)) {
  describe_data(sampler_, console);
  warn_of_positions(bounds_of(sampler_).document, config, console);
  if (options.on_policy()) written_ = on_policy_bounds(options, config, data_.shown);
  if (options.preference.enabled()) {
    longest_sequence_ = options.sequence_len;
  } else {
    clip(test_, options.sequence_len, console);
  }
}

void RunDocuments::set_reference(std::vector<std::vector<float>> train, const std::vector<std::vector<float>>& test) {
  data_.train.set_reference(std::move(train));
  for (std::size_t i = 0; i < test_.size(); ++i) test_[i].reference = test[i];
}

void RunDocuments::replace(const std::vector<Document>& train, const options::TrainOptions& options) {
  data_.train = data::Documents::of(train);
  sampler_ = data::BatchSampler(data_.train, batch_options(options));
}

BatchBounds RunDocuments::bounds() const {
  BatchBounds bounds = bounds_of(sampler_);
  for (const Document& d : test_) {
    bounds.document = std::max(bounds.document, static_cast<std::int64_t>(d.input_ids.size()));
  }
  bounds.document = std::max(bounds.document, written_.document);
  bounds.tokens = std::max({bounds.tokens, bounds.document, written_.tokens});
  bounds.answers = written_.answers;
  bounds.answer_length = written_.answer_length;
  bounds.others_tokens = written_.others_tokens;
  bounds.others_document = written_.others_document;
  bounds.kept = data_.train.kept();
  if (longest_sequence_ > 0) bounds.document = std::min(bounds.document, longest_sequence_);
  return bounds;
}

}  // namespace inlay::train
