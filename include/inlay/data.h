#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <inlay/types.h>

namespace inlay {

// A document as training sees it: labels stand at their tokens, -100 where nothing is learned.
struct TrainingDocument {
  std::vector<std::int32_t> input_ids, labels;
  std::vector<float> weights;  // of the labels; empty: all of them are 1
};

// The documents of a file (.jsonl, .json, .txt, .csv, .tsv, all of them also with .gz or .zst behind it; .parquet), of
// a folder of such files or of a pattern, as `inlay train` prepares them. They stay on disk and are read when they are
// asked for; threads may share one.
class INLAY_API Dataset {
 public:
  struct Options {
    std::string model;  // folder with tokenizer.json, and the chat template where rows are conversations
    std::string
        format;  // YAML of the keys that an entry of `datasets` may have; empty: by what the first row looks like
    bool skip_bad_rows = false;
    int threads = 0;
  };
  Dataset(const std::string& path, const Options& options);

  std::int64_t size() const;
  std::int64_t length(std::int64_t index) const;  // in tokens
  TrainingDocument read(std::int64_t index) const;
  // Of the file's rows: how many there were, were bad and left out, and had nothing to learn.
  struct Rows {
    std::int64_t all = 0, skipped = 0, unlabelled = 0;
  };
  Rows rows() const;

  struct Parts;

 private:
  std::shared_ptr<const Parts> parts_;
};

}  // namespace inlay
