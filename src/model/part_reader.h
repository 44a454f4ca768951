#pragma once

#include <vector>

#include "io/checkpoint.h"
#include "weights/weight.h"

namespace inlay::model {

// Rows of a parameter's part as a checkpoint holds them, in host memory: the tensor itself, or one expert out of a
// tensor that stacks them all, turned round; or the same in MXFP4, decoded to bf16. A piece at a time: no second copy
// of a tensor exists. Every part must be there, in its shape; errors name the file and the tensor.
class PartReader final : public weights::PartSource {
 public:
  PartReader(const io::Checkpoint& checkpoint, const weights::Parameter& parameter, const weights::Part& part);

  ConstView rows(std::int64_t begin, std::int64_t end) override;
  Mxfp4 mxfp4() const override { return {blocks_, scales_}; }
  std::uint64_t file_bytes() const { return file_bytes_; }  // of this part
  // Done with the part: its memory may go once no other part needs the tensor.
  void drop() const;

 private:
  void open_plain();
  void open_stacked();
  void open_mxfp4();
  ConstView transposed_rows(std::int64_t begin, std::int64_t end);
  ConstView decoded_rows(std::int64_t begin, std::int64_t end);

  const io::Checkpoint* checkpoint_;
  const weights::Parameter* parameter_;
  const weights::Part* part_;
  ConstView tensor_;           // the part's own matrix: [rows, ...], or [in, out] where it is stacked
  ConstView blocks_, scales_;  // of the part, where it is MXFP4: [rows, in / 32, 16] and [rows, in / 32]
  std::uint64_t file_bytes_ = 0;
  std::vector<std::byte> buffer_;
};

// Whether a stacked tensor is there in MXFP4, as NAME_blocks and NAME_scales, instead of under its own name.
bool is_mxfp4(const io::Checkpoint& checkpoint, const std::string& name);

// The shape of the checkpoint tensor that a part belongs to.
Shape tensor_shape(const weights::Parameter& parameter, const weights::Part& part);

}  // namespace inlay::model
