#pragma once

#include "backend/exec.h"

// The device's side of simulated processes, in Lane::network. The host never waits.
namespace inlay::parallel::cuda {

void mark_time(backend::Exec& exec);
// What follows in the lane begins so long after the mark, or at once where that time is over.
void wait_since_mark(backend::Exec& exec, double seconds);
void scale(backend::Exec& exec, View tensor, double factor);
// whole = the rows over and over, so that they stay where they are at `begin` bytes.
void repeat(backend::Exec& exec, View whole, ConstView rows, std::size_t begin);

}  // namespace inlay::parallel::cuda
