#pragma once

#include <functional>

#include <inlay/ops.h>

#include "backend/exec.h"

// How the public operations meet ours: tensors become views, and scratch is what a rehearsal says.
namespace inlay::api {

View view(const Tensor& tensor);

// Refuses a tensor that is not of this type and shape, unless it is absent and may be.
enum class May : bool { not_be_absent, be_absent };
void expect(const char* op, const char* name, const Tensor& tensor, DType dtype, const Shape& shape,
            May may = May::not_be_absent);
// The same of activations: fp32 or bf16, of so many dimensions.
void expect_activation(const char* op, const char* name, const Tensor& tensor, int rank);

class OpsWorkspace {
 public:
  explicit OpsWorkspace(Device device);
  ~OpsWorkspace();

  Device device() const { return device_; }
  void* stream = nullptr;
  std::function<void*(std::size_t)> take;  // empty: memory of our own

  // Calls work twice: with an Exec that plans, and, with as much memory as that took, with one that runs.
  void run(const std::function<void(backend::Exec&)>& work);

 private:
  void* own(std::size_t bytes);

  Device device_;
  backend::Exec exec_;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace inlay::api

namespace inlay {

struct Ops::Parts : api::OpsWorkspace {
  using OpsWorkspace::OpsWorkspace;
};

}  // namespace inlay
