#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace inlay::model {

// What a layer could keep from forward to backward besides its input, which it always keeps.
enum class Activation : std::uint8_t {
  attention_norm,  // normed input of the q/k/v product
  qkv,             // queries, keys, values
  attention,       // attention's output and log-sum-exp
  residual,        // the residual stream between attention and MLP
  mlp_norm,        // normed input of the gate/up product
  gate_up,         // gate and up before the activation
};
inline constexpr std::size_t activation_count = 6;
std::string_view name_of(Activation activation);

enum class Storage : std::uint8_t { keep, recompute };

// For each of them, kept or computed again. Any table gives the same bits; it only trades memory for time.
class ActivationPolicy {
 public:
  static ActivationPolicy keep_all();
  static ActivationPolicy recompute_all();
  // "keep", "recompute" (everything), "recompute_norms", "recompute_mlp", or a list of names to keep: "qkv,attention".
  static ActivationPolicy parse(std::string_view text);

  bool keeps(Activation activation) const { return table_[static_cast<std::size_t>(activation)] == Storage::keep; }
  ActivationPolicy with(Activation activation, Storage storage) const {
    ActivationPolicy copy = *this;
    copy.table_[static_cast<std::size_t>(activation)] = storage;
    return copy;
  }
  std::string str() const;  // parse() reads it back
  bool operator==(const ActivationPolicy&) const = default;

 private:
  std::array<Storage, activation_count> table_{};
};

}  // namespace inlay::model
