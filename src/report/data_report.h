#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/sampler.h"
#include "data/tokenizer/tokenizer.h"
#include "options/train_options.h"

// What a run would read, for `inlay data`: how much, how long, how well it packs, and what some of it looks like.
namespace inlay::report {

struct DataReport {
  struct File {
    std::string path;
    data::RowCounts counts;
    std::int64_t documents = 0, tokens = 0, learned = 0;
    double weight = 1;
  };
  struct Bin {
    std::int64_t from = 0, to = 0;  // lengths, the last one included
    std::int64_t documents = 0;
  };
  std::vector<File> files;
  std::vector<Bin> lengths;  // from the shortest to the longest, each bin about twice as long as the one before
  std::int64_t documents = 0, tokens = 0, learned = 0;  // of an epoch, before anything is cut
  std::int64_t shortest = 0, median = 0, longest = 0;
  std::int64_t used_documents = 0, used_tokens = 0, batches = 0;  // of an epoch, as it is trained on
  double efficiency = 0;
  std::int64_t truncated = 0, truncated_tokens = 0, split = 0, dropped = 0, unlabelled = 0;
};

DataReport data_report(const std::vector<DataReport::File>& files, const data::Documents& documents,
                       const data::BatchSampler& sampler);

// How much a token teaches.
enum class Learned : std::uint8_t { no, yes, weighted };

// A document's text in runs of tokens of one kind. Without a tokenizer: ids.
struct TextRun {
  std::string text;
  Learned learned = Learned::no;
  float weight = 1;
};
std::vector<TextRun> text_runs(const Document& document, const std::optional<data::Tokenizer>& tokenizer);

// Runs as a person reads them: what is learned is green on a terminal with colours, and in ⟦brackets⟧ elsewhere, with
// its weight where that is not 1.
std::string show_runs(const std::vector<TextRun>& runs, bool colour);

}  // namespace inlay::report
