#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>

// Which cuBLASLt algorithm was found fastest for which product. Timing is noise, and two algorithms may round
// differently; so a choice is made once and kept in a file, and every later run on such a GPU with such a library makes
// the same one: the same inputs give the same bits, run after run.
namespace inlay::backend::cuda {

// Everything that an algorithm depends on. Plain numbers without padding, so that it can be hashed and written.
struct MatmulKey {
  std::int64_t m = 0, n = 0, k = 0;  // as cuBLASLt sees them: column-major
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  std::int64_t in_a = 0, in_b = 0, out = 0;  // DType
  std::int64_t scale_a = -1, scale_b = -1;   // Fp8Scaling; -1: none
  std::int64_t fast_sums = 0;                // Fp8Sums
  std::int64_t transpose_a = 0, transpose_b = 0;
  std::int64_t align_a = 0, align_b = 0, align_c = 0;  // bytes, at most 16
  std::int64_t reads_c = 0;                            // beta is not 0
  std::int64_t device_scalars = 0;
  std::int64_t workspace = 0;  // bytes

  static constexpr int fields = 20;
  using Numbers = std::array<std::int64_t, fields>;

  bool scaled() const { return scale_a >= 0; }
  bool operator==(const MatmulKey&) const = default;
  // The key of a choice: batches of about the same size share one, so that packed batches of ever new lengths do not
  // tune for ever. Extents keep their three highest bits; of leading dimensions only the alignment counts.
  MatmulKey rounded() const;
};
static_assert(sizeof(MatmulKey) == sizeof(MatmulKey::Numbers));

struct MatmulKeyHash {
  std::size_t operator()(const MatmulKey& key) const;
};

// cublasLtMatmulAlgo_t's words: opaque, valid for one version of the library.
using AlgorithmBits = std::array<std::uint64_t, 8>;

class MatmulChoices {
 public:
  // `device` names the GPU and the library's version; the file's name comes from it.
  explicit MatmulChoices(const std::string& device);

  // Whether a choice could be kept. False with INLAY_TUNE=0, or where no folder can be written: then nobody should
  // choose by timing.
  bool enabled() const { return enabled_; }
  std::optional<AlgorithmBits> find(const MatmulKey& key) const;
  // Keeps the choice and returns what holds from now on: another process may have been first. Nothing when it could
  // not be written.
  std::optional<AlgorithmBits> remember(const MatmulKey& key, const AlgorithmBits& bits);

 private:
  void read();
  bool write() const;

  std::filesystem::path file_;
  bool enabled_ = false;
  std::unordered_map<MatmulKey, AlgorithmBits, MatmulKeyHash> choices_;
};

}  // namespace inlay::backend::cuda
