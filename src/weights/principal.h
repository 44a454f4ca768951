#pragma once

#include <string_view>

#include "backend/exec.h"

// The directions along which a layer's inputs carry energy, the strongest first: eigenvectors of C = Σ x·xᵀ. Rows are
// directions. Solved in fp64, in scratch; the host waits for the result.
namespace inlay::weights {

struct PrincipalDirections {
  View energies;    // fp32 [R], eigenvalues of C, descending, none negative
  View directions;  // fp32 [R, M], orthonormal rows
};

// From C itself, fp32 [M, M]: R = M. One of C's triangles is read.
void principal_of_covariance(backend::Exec& exec, const PrincipalDirections& out, ConstView covariance,
                             std::string_view name = "a covariance");

// From the inputs X [n, M], fp32 or bf16, where they are fewer than they are wide (n <= M): R = n, and no matrix of
// M × M is formed. Returns how many directions carry energy above rounding; rows and energies after those are zero.
// Returns n in a plan.
std::int64_t principal_of_inputs(backend::Exec& exec, const PrincipalDirections& out, ConstView inputs,
                                 std::string_view name = "a layer's input");

}  // namespace inlay::weights
