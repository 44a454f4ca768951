#pragma once

#include <functional>
#include <map>

#include "adapter/adapter_file.h"
#include "weights/weight.h"

namespace inlay::adapter {

// What the weights of an adapter start from: those of a file, or fresh ones. Names are weights/lora.h's.
class AdapterStart final : public weights::StartTensors {
 public:
  // Of one part, in fp32: A [rank, in], B [out, rank], and DoRA's magnitude, empty where the weight's own norms are it.
  using Values = std::function<std::vector<float>(const AdaptedPart&)>;
  struct Source {
    Values a, b, magnitude;
  };
  AdapterStart(const AdapterTargets& targets, Source source);
  // The tensors that are no adapter's; they must outlive this.
  void set_others(const weights::StartTensors* others) { others_ = others; }

  bool has(const std::string& name) const override;
  const void* at(const std::string& name, DType dtype, const Shape& shape) const override;

 private:
  std::vector<float> values(const std::string& name) const;

  std::map<std::string, std::vector<AdaptedPart>> parts_;  // by the parameter's name
  Source source_;
  const weights::StartTensors* others_ = nullptr;
  mutable std::vector<float> last_;
};

// An adapter that is there already. The file must outlive the result.
AdapterStart start_from(const AdapterFile& file);
// A new one: A normal with a deviation of 1 / rank, which is PEFT's "gaussian", and B zero.
AdapterStart start_at_random(const AdapterTargets& targets, std::uint64_t seed);

}  // namespace inlay::adapter
