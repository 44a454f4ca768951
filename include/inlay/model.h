#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <inlay/data.h>

namespace inlay {

// A model in memory, to look into: what it answers, how likely it finds things, where gradients go. One thread at a
// time. Memory is planned for what is asked: a longer text than before, or gradients after answers, loads the weights
// anew.
class INLAY_API Model {
 public:
  struct Options {
    std::string device = "auto", dtype = "auto";  // auto, cpu, cuda; auto, fp32, bf16
    std::string adapter;                          // folder of an adapter of inlay train or PEFT; empty: none
    bool quiet = true;
  };
  explicit Model(const std::string& folder);
  Model(const std::string& folder, const Options& options);
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const std::string& folder() const;
  std::int64_t vocab_size() const;
  std::int64_t parameter_count() const;
  // What ends an answer, as `inlay generate` has it: the tokenizer's eos, and what generation_config.json names. Chat
  // models often end a turn by another token than a text.
  std::vector<std::int32_t> stop_tokens() const;

  struct Sampling {
    std::int64_t max_new_tokens = 32;
    std::vector<std::int32_t> stops;  // each ends the answer and is not part of it; stop_tokens() are the model's own
    float temperature = 0;            // 0: always the likeliest token
    float top_p = 1;
    std::uint64_t seed = 0;
    std::int64_t sequence = 0;  // one prompt under two numbers goes on in two ways
    // Called with every token as it is made; false ends the answer.
    std::function<bool(std::int32_t)> made;
  };
  std::vector<std::int32_t> generate(const std::vector<std::int32_t>& prompt, const Sampling& sampling);

  // Of what follows every token: fp32 [tokens, vocab_size], row after row.
  std::vector<float> logits(const std::vector<std::int32_t>& tokens);

  struct NamedTensor {
    std::string name;  // as the checkpoint has it
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };
  struct Gradients {
    double loss = 0;          // mean over the labels that count
    std::int64_t labels = 0;  // how many of them there were
    std::vector<NamedTensor> tensors;
  };
  // Of the mean loss over all documents as one batch, for every parameter.
  Gradients gradients(const std::vector<TrainingDocument>& documents);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace inlay
