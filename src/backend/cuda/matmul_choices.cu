#include "backend/cuda/matmul_choices.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <bit>
#include <cctype>
#include <fstream>
#include <sstream>
#include <string_view>

#include "core/cache.h"
#include "core/environment.h"
#include "core/error.h"

namespace inlay::backend::cuda {

namespace {

constexpr std::string_view header = "inlay matmul choices 3";

// Up to a multiple of a quarter of the power of two below it: 16000 -> 16384, 20000 -> 20480, 5 -> 5.
std::int64_t round_extent(std::int64_t extent) {
  const int bits = std::bit_width(static_cast<std::uint64_t>(extent));
  const std::int64_t unit = bits <= 3 ? 1 : std::int64_t{1} << (bits - 3);
  return (extent + unit - 1) / unit * unit;
}

std::int64_t alignment_of(std::int64_t leading_dimension) { return leading_dimension & -leading_dimension; }

// Holds an exclusive lock for as long as it lives; processes that tune at the same time take turns.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& path) : descriptor_(::open(path.c_str(), O_CREAT | O_RDWR, 0644)) {
    held_ = descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX) == 0;
  }
  ~FileLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  bool held() const { return held_; }

 private:
  int descriptor_;
  bool held_ = false;
};

}  // namespace

MatmulKey MatmulKey::rounded() const {
  MatmulKey key = *this;
  key.m = round_extent(m);
  key.n = round_extent(n);
  key.k = round_extent(k);
  // Eight elements are at least 16 bytes in every dtype: beyond that alignment changes nothing.
  key.lda = std::min<std::int64_t>(alignment_of(lda), 8);
  key.ldb = std::min<std::int64_t>(alignment_of(ldb), 8);
  key.ldc = std::min<std::int64_t>(alignment_of(ldc), 8);
  return key;
}

std::size_t MatmulKeyHash::operator()(const MatmulKey& key) const {
  std::uint64_t hash = 0;
  for (const std::int64_t number : std::bit_cast<MatmulKey::Numbers>(key)) {
    hash = (hash ^ static_cast<std::uint64_t>(number)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash;
}

MatmulChoices::MatmulChoices(const std::string& device) {
  if (environment("INLAY_TUNE") == "0") return;
  const std::filesystem::path folder = cache_folder();
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || ::access(folder.c_str(), W_OK | X_OK) != 0) return;
  std::string name = "matmul-";
  for (const char c : device) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '-';
  file_ = folder / (name + ".txt");
  enabled_ = true;
  read();
}

std::optional<AlgorithmBits> MatmulChoices::find(const MatmulKey& key) const {
  const auto found = choices_.find(key);
  return found == choices_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<AlgorithmBits> MatmulChoices::remember(const MatmulKey& key, const AlgorithmBits& bits) {
  const FileLock lock(std::filesystem::path(file_) += ".lock");
  if (lock.held()) {
    read();
    if (!choices_.emplace(key, bits).second || write()) return choices_.at(key);
    choices_.erase(key);
  }
  enabled_ = false;
  return std::nullopt;
}

// One line a choice: the key's numbers, then the algorithm's words in hexadecimal. A line that does not read so is
// skipped, and so is a file of another kind: the worst that follows is one more tuning.
void MatmulChoices::read() {
  std::ifstream in(file_);
  std::string line;
  if (!std::getline(in, line) || line != header) return;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    MatmulKey::Numbers numbers{};
    AlgorithmBits bits{};
    for (std::int64_t& number : numbers) words >> number;
    words >> std::hex;
    for (std::uint64_t& word : bits) words >> word;
    if (words) choices_.try_emplace(std::bit_cast<MatmulKey>(numbers), bits);
  }
}

// Written beside and renamed over, so that a reader never sees half a file.
bool MatmulChoices::write() const {
  const std::filesystem::path draft = std::filesystem::path(file_) += fmt::format(".{}", ::getpid());
  bool written = false;
  {
    std::ofstream out(draft, std::ios::trunc);
    out << header << '\n';
    for (const auto& [key, bits] : choices_) {
      out << std::dec;
      for (const std::int64_t number : std::bit_cast<MatmulKey::Numbers>(key)) out << number << ' ';
      out << std::hex;
      for (const std::uint64_t word : bits) out << word << ' ';
      out << '\n';
    }
    written = static_cast<bool>(out.flush());
  }
  std::error_code error;
  if (written) std::filesystem::rename(draft, file_, error);
  if (written && !error) return true;
  std::filesystem::remove(draft, error);
  return false;
}

}  // namespace inlay::backend::cuda
