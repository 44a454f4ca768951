#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "osft/layout.h"
#include "parallel/communicator.h"

namespace inlay::osft {

using backend::Exec;

// The directions of every target, on the host, in fp32. Rows are directions.
//   basis activations:  NAME.free or NAME.frozen, whichever is stored; tokens.free, [vocabulary], 1 where a token's
//                       embedding may change
//   basis weights:      NAME.PART.u, .v, .s (those that train), .u.frozen and .v.frozen where the projection needs
//                       them, .v.scaled for the factored route
class BasisStore final : public weights::StartTensors {
 public:
  struct Tensor {
    DType dtype = DType::f32;
    Shape shape;
    std::vector<std::byte> bytes;
  };

  void put(const std::string& name, Tensor tensor) { tensors_[name] = std::move(tensor); }
  const Tensor* find(const std::string& name) const;
  const Tensor& at(const std::string& name) const;
  const void* at(const std::string& name, DType dtype, const Shape& shape) const override;
  std::size_t bytes() const;
  // Of all names and contents: two runs with the same fingerprint learn in the same directions.
  std::string fingerprint() const;

  // Every process gets what the others have beside its own. All call it.
  void share(parallel::Communicator& ranks);

  void save(const std::filesystem::path& file) const;  // atomically
  // UserError where the file is not, to the last bit, what save() wrote.
  static BasisStore load(const std::filesystem::path& file);

 private:
  std::map<std::string, std::string> metadata() const;

  std::map<std::string, Tensor> tensors_;
};

// UserError where the directions cannot be those of the layout's targets: some are missing or have another shape.
void check_bases(const OsftLayout& nominal, const BasisStore& bases);
// The layout with the ranks that were found: calibration may see fewer directions than the options would freeze.
OsftLayout found_layout(const OsftLayout& nominal, const BasisStore& bases);

}  // namespace inlay::osft
