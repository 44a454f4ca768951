#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

// Faults on purpose, for the crash tests: the environment variable INLAY_TEST_FAULT says which operation on the disk
// (a file opened, written, brought to disk, renamed or removed; a folder made) goes wrong.
//   kill:37     the process dies before its 37th operation
//   enospc:12   the disk is full from the 12th on: nothing but removing works any more
//   defect:3    the third one throws an InternalError
//   stuck:TEXT  the first one on a file with TEXT in its name takes a minute, and the disk is full for all others
//   space:N     nothing goes wrong, but every disk says that it has N bytes free
//   log:FILE    nothing goes wrong; FILE gets a line per operation, "sync /runs/a/metrics.jsonl"
// Without the variable this is one comparison.
namespace inlay::io {

enum class DiskOperation { open, write, sync, rename, link, make_folder, remove };

// The error that the operation must fail with; 0: it goes on. A renamed file goes by its new name.
int injected_fault(DiskOperation operation, const std::filesystem::path& path);
// The bytes that every disk has; nothing where none are made up.
std::optional<std::uint64_t> injected_space();

}  // namespace inlay::io
