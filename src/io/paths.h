#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

// Questions to the file system, and changes to it. What is not there is an answer; everything else that can be wrong
// with a path (no permission, a loop of links, a name that is too long, a full disk) is a UserError that names it.
namespace inlay::io {

// What the system says of an errno.
std::string reason(int error);

bool exists(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);
bool is_file(const std::filesystem::path& path);  // a regular one
std::uint64_t file_bytes(const std::filesystem::path& path);
// What a folder holds, sorted.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);
// Absolute and without links, as far as it exists.
std::filesystem::path real_path(const std::filesystem::path& path);

// Makes a folder and those above it, on disk when it returns.
void create_folders(const std::filesystem::path& folder);
// The same bytes under another name, which no file has yet: one file on disk where the file system can.
void link_or_copy(const std::filesystem::path& from, const std::filesystem::path& to);
// Takes the place of a file that has the new name.
void rename(const std::filesystem::path& from, const std::filesystem::path& to);
// A file, or a folder with everything in it; nothing where it is not there.
void remove_all(const std::filesystem::path& path);

// Brings the names in a folder to disk, where its file system can.
void sync_folder(const std::filesystem::path& folder);

// Whether a name is one that AtomicFile writes under: .NAME.tmp-PID-N.
bool is_temporary(const std::filesystem::path& path);
// Removes temporary files that killed processes left in a folder that others may be writing to: those of processes that
// are gone, a day after the last write (the process may have run on another machine). A folder that is not there, or
// not ours to clean, stays as it is.
void remove_stale_temporaries(const std::filesystem::path& folder);

}  // namespace inlay::io
