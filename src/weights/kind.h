#pragma once

#include <map>
#include <set>

#include "weights/weight.h"

namespace inlay::weights {

struct WeightMemory {
  DType compute = DType::f32;
  bool training = false;  // gradients and masters too
};

// What a matrix is to training, and with what extents.
class WeightKind {
 public:
  virtual ~WeightKind() = default;
  // Takes the memory of the matrix and of everything that belongs to it.
  virtual std::unique_ptr<Weight> make(Exec& exec, Parameter& parameter, const WeightMemory& memory) const = 0;
  virtual std::string describe() const = 0;  // for reports
  // Whether the matrix's value may be kept on the host and brought to the device for use.
  virtual bool may_live_on_host() const { return true; }
  // Whether what lives there is what the matrix began as, and its value is made whenever it has come.
  virtual bool made_on_arrival() const { return false; }
  // Whether its products are, or begin with, plain ones of the matrix, so that they can be made in fp8.
  virtual bool multiplies_value() const { return true; }
  // Whether rows can be changed by different processes, none of which sees the others'.
  virtual bool cuts_rows() const { return true; }
};

// Which matrix is of which kind, and which parameters do not train.
struct WeightPlan {
  std::map<std::string, std::shared_ptr<const WeightKind>> kinds;  // by the parameter's name
  std::shared_ptr<const WeightKind> others;                        // of matrices that have no entry; null: dense
  std::set<std::string> frozen;                                    // names of parameters, vectors too

  const WeightKind& of(const Parameter& parameter) const;
};

}  // namespace inlay::weights
