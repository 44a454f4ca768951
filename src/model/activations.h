#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inlay::model {

// What a layer could keep from forward to backward.
enum class Activation : std::uint8_t {
  input,           // the residual stream before the layer
  attention_norm,  // normed input of the q/k/v product
  qkv,             // queries, keys, values
  attention,       // attention's output and log-sum-exp
  residual,        // the residual stream between attention and MLP
  mlp_norm,        // normed input of the gate/up product
  gate_up,         // gate and up before the activation
  // Of models with norms behind the blocks: what these norms see.
  attention_answer,
  mlp_answer,
};
inline constexpr std::size_t activation_count = 9;
std::string_view name_of(Activation activation);

// Kept on the device, computed again (an input: from the layer before), or on the host between the passes. Inputs,
// attention's results, and gate and up may leave the device: the rest costs little to compute again.
enum class Storage : std::uint8_t { keep, recompute, offload };

// One layer's table. Any table gives the same bits; it only trades memory for time.
class LayerPolicy {
 public:
  static LayerPolicy keep_all() { return {}; }
  static LayerPolicy recompute_all();  // but for the input

  Storage operator[](Activation activation) const { return table_[static_cast<std::size_t>(activation)]; }
  bool keeps(Activation activation) const { return (*this)[activation] == Storage::keep; }
  bool offloads(Activation activation) const { return (*this)[activation] == Storage::offload; }
  LayerPolicy with(Activation activation, Storage storage) const {
    LayerPolicy copy = *this;
    copy.table_[static_cast<std::size_t>(activation)] = storage;
    return copy;
  }
  bool operator==(const LayerPolicy&) const = default;

 private:
  std::array<Storage, activation_count> table_{};
};

// The tables of all layers: one for all, or the first ones otherwise than the rest.
class ActivationPolicy {
 public:
  static ActivationPolicy keep_all() { return parse("keep"); }
  // A name (below), the activations to keep ("qkv,attention"), or some for the first layers and some for the rest:
  // "12*recompute+attention".
  //   keep                everything
  //   recompute_norms     everything but the norms' outputs
  //   recompute_mlp       the same without gate and up
  //   recompute           nothing but the layers' inputs
  //   offload_attention   inputs and attention's results, on the host
  //   offload             inputs, on the host
  //   offload_half        every second layer's input, on the host
  //   offload_mlp         as recompute_mlp, but gate and up are on the host
  //   offload_mlp_half    the same of every second layer
  //   offload_both        as offload_attention, and gate and up on the host as well
  //   offload_both_half   the same, gate and up of every second layer
  static ActivationPolicy parse(std::string_view text);
  // From less memory of the device to more time or more of the host's.
  static const std::vector<std::string_view>& ladder();

  const LayerPolicy& of(std::int64_t layer) const;
  // Some layer has something on the host.
  bool offloads() const;
  const std::string& str() const { return text_; }  // parse() reads it back
  bool operator==(const ActivationPolicy& other) const { return text_ == other.text_; }

 private:
  struct Segment {
    std::int64_t layers;    // 0: all that are left
    LayerPolicy even, odd;  // by the layer's number
  };
  static Segment parse_segment(std::string_view name);

  std::string text_;
  std::vector<Segment> segments_;
};

}  // namespace inlay::model
