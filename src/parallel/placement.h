#pragma once

#include <span>
#include <string>
#include <vector>

// Which cores the processes of one host work on.
namespace inlay::parallel {

// Logical processors that this thread may run on; those of one core side by side, those of one socket as well.
std::vector<int> allowed_cores();
// Those among them that are near a device on the PCI bus; all where the system does not say.
std::vector<int> cores_near(const std::string& pci, std::span<const int> allowed);
// "0-3,8,10-11"
std::vector<int> parse_cores(const std::string& list);

// The index-th of so many even shares, none of them empty; where there are too few cores for that, all of them.
std::vector<int> share_of(std::span<const int> cores, int index, int count);
// This thread, and those that it makes from now on. False where the system refuses.
bool keep_to_cores(std::span<const int> cores);

}  // namespace inlay::parallel
