#include "report/data_report.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "data/tokenizer/text_stream.h"

namespace inlay::report {

namespace {

std::vector<DataReport::Bin> bins_of(const std::vector<std::int64_t>& sorted) {
  std::vector<DataReport::Bin> bins;
  std::int64_t from = 1;
  while (from * 2 <= sorted.front()) from *= 2;
  for (; from <= sorted.back(); from *= 2) bins.push_back({from, 2 * from - 1, 0});
  auto bin = bins.begin();
  for (const std::int64_t length : sorted) {
    while (length > bin->to) ++bin;
    ++bin->documents;
  }
  return bins;
}

Learned kind_of(const Document& document, std::size_t i) {
  if (!is_label(document.labels[i])) return Learned::no;
  return document.weights.empty() || document.weights[i] == 1.0f ? Learned::yes : Learned::weighted;
}

}  // namespace

DataReport data_report(const std::vector<DataReport::File>& files, const data::Documents& documents,
                       const data::BatchSampler& sampler) {
  DataReport report{.files = files};
  std::vector<std::int64_t> lengths = documents.lengths();
  std::ranges::sort(lengths);
  report.documents = documents.size();
  report.tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  for (const std::int64_t number : sampler.kept()) report.learned += sampler.labels_of(number);
  report.lengths = bins_of(lengths);
  report.shortest = lengths.front();
  report.median = lengths[lengths.size() / 2];
  report.longest = lengths.back();
  report.used_documents = sampler.document_count();
  report.used_tokens = sampler.tokens_per_epoch();
  report.batches = sampler.batches_per_epoch(0);
  report.efficiency = sampler.efficiency(0);
  report.truncated = sampler.truncated_documents();
  report.truncated_tokens = sampler.truncated_tokens();
  report.split = sampler.split_documents();
  report.dropped = sampler.dropped_documents();
  report.unlabelled = sampler.unlabelled_pieces();
  return report;
}

std::vector<TextRun> text_runs(const Document& document, const std::optional<data::Tokenizer>& tokenizer) {
  std::vector<TextRun> runs;
  std::optional<data::TextStream> stream;
  if (tokenizer) stream.emplace(*tokenizer, std::vector<std::int32_t>(), false);
  for (std::size_t i = 0; i < document.input_ids.size(); ++i) {
    const Learned kind = kind_of(document, i);
    const float weight = document.weights.empty() ? 1.0f : document.weights[i];
    if (runs.empty() || runs.back().learned != kind || (kind == Learned::weighted && runs.back().weight != weight)) {
      runs.push_back({.text = {}, .learned = kind, .weight = weight});
    }
    std::string& text = runs.back().text;
    if (stream) {
      text += stream->add(document.input_ids[i]);
    } else {
      text += fmt::format("{}{}", text.empty() ? "" : " ", document.input_ids[i]);
    }
  }
  if (stream && !runs.empty()) runs.back().text += stream->finish();
  return runs;
}

std::string show_runs(const std::vector<TextRun>& runs, bool colour) {
  std::string out;
  for (const TextRun& run : runs) {
    // Control characters in data must not steer the terminal.
    std::string text;
    for (const char c : run.text) {
      if ((static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) || c == '\n' || c == '\t') {
        text += c;
      } else {
        text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
    }
    if (run.learned == Learned::no) {
      out += colour ? fmt::format("\x1b[2m{}\x1b[0m", text) : text;
      continue;
    }
    const std::string weight = run.learned == Learned::weighted ? fmt::format("×{:g} ", run.weight) : "";
    out += colour ? fmt::format("\x1b[{}m{}{}\x1b[0m", run.learned == Learned::weighted ? 33 : 32, weight, text)
                  : fmt::format("⟦{}{}⟧", weight, text);
  }
  return out;
}

}  // namespace inlay::report
