#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <inlay/tensor.h>

// The operations that training is made of, on memory and, on a GPU, in a stream that the caller owns. Activations are
// fp32 or bf16 (the loss takes fp16, too), gradients of weights always fp32. The same inputs give the same bits.
// Mistakes in shapes and types are UserErrors, before anything is computed.
namespace inlay {

// logits = hidden · weightᵀ + bias, and their cross entropy, without ever holding all logits.
struct LinearCrossEntropy {
  Tensor hidden;         // [T, H]
  Tensor weight;         // [V, H] in hidden's type
  Tensor bias;           // [V] in hidden's type
  Tensor targets;        // int32 [T]
  Tensor rows;           // int32 [N], ascending: the rows whose target counts; absent: all of them
  Tensor class_weights;  // fp32 [V]
  Tensor token_weights;  // fp32 [T]
  Tensor upstream;       // fp32: [1], or [T] where nothing is reduced; absent: 1

  enum class Reduction { mean, sum, none };
  Reduction reduction = Reduction::mean;
  float label_smoothing = 0;    // in [0, 1)
  float softcap = 0;            // 0: none
  float z_loss = 0;             // factor of the square of the log-sum-exp
  double normalizer = 0;        // mean divides by this; 0: by the weights of the targets that count
  std::int64_t chunk_rows = 0;  // rows of logits that exist at a time; 0: as many as the device is served best with

  // Each is written where it is given. Losses are added to, unless nothing is reduced.
  Tensor loss, loss_of_z;  // fp32: [1], or [T]
  Tensor correct;          // int32 [1]: += rows whose largest logit is the target's
  Tensor predicted;        // int32 [T]; -1 where nothing counts
  Tensor dhidden;          // [T, H] in hidden's type, overwritten; may be hidden itself
  Tensor dweight, dbias;   // fp32 [V, H] and [V], overwritten
};

// down · (silu(gate · x) ∘ (up · x)), tile by tile: what lies between exists for one tile of rows only, in the backward
// pass too, which computes it once more.
struct SwigluMlp {
  Tensor x;               // [T, H]
  Tensor gate, up, down;  // [I, H], [I, H], [H, I] in x's type
  std::int64_t tile = 0;  // rows at a time; 0: all of them
  Tensor out;             // [T, H]: of the forward pass
  // [T, 2·I] in x's type: gate and up, which the forward pass leaves here and the backward pass reads. Absent: they
  // exist for one tile only, and the backward pass computes them once more.
  Tensor gate_up;

  Tensor dout;               // [T, H]: of the backward pass
  Tensor dx;                 // [T, H], overwritten; may be dout itself
  Tensor dgate, dup, ddown;  // fp32, overwritten; absent: not wanted
};

// A mixture of experts: every token goes to the `chosen` experts with the largest router logits and adds up what they
// answer, weighted.
struct MixtureOfExperts {
  Tensor x;              // [T, H]
  Tensor router;         // [E, H] in x's type
  Tensor gate_up, down;  // [E, 2·I, H] (gate first) and [E, H, I] in x's type
  std::int64_t chosen = 1;
  bool normalized = true;  // the weights of the chosen experts sum to 1
  std::int64_t tile = 0;
  Tensor out;  // [T, H]: of the forward pass

  Tensor dout;                      // [T, H]: of the backward pass
  Tensor dx;                        // [T, H], overwritten
  Tensor drouter, dgate_up, ddown;  // fp32, overwritten; absent: not wanted
};

// Attention over documents that lie end to end. Query head h reads key/value head h / (heads / kv_heads).
struct Attention {
  Tensor q, k, v;                        // [T, heads, D], [T, kv_heads, D] twice
  Tensor out, lse;                       // like q; fp32 [T, heads]
  std::vector<std::int32_t> cu_seqlens;  // where documents begin, and the end
  Tensor device_cu_seqlens;              // the same, int32 on the device; absent on a CPU
  float scale = 0;                       // 0: 1 / √D
  std::int64_t window = 0;               // tokens that one sees, itself included; 0: all before it
  std::string mask, score;               // rules as text (docs/attention.md), in the place of causal and window
  Tensor prefix_lengths;                 // int32 [documents], where the mask speaks of prefixes
  Tensor head_bias;                      // fp32 [heads], where the score asks for it
  Tensor sinks;                          // [heads] in q's type: a logit beside each head's scores
  bool deterministic = true;             // on a GPU: the variant whose bits never change

  Tensor dout;        // like q: of the backward pass, as are out and lse of the forward one
  Tensor dq, dk, dv;  // overwritten
  Tensor dsinks;      // fp32 [heads], overwritten; absent: not wanted
};

class INLAY_API Ops {
 public:
  explicit Ops(Device device);
  Ops(Ops&&) noexcept;
  Ops& operator=(Ops&&) noexcept;
  ~Ops();

  // A cudaStream_t; the default stream unless told otherwise.
  void use_stream(void* stream);
  // Where scratch comes from: called once per op with the bytes that it needs. The memory must stay until the op's work
  // is done, on a GPU in the stream's order. Without, it comes from memory of this object's own, which grows.
  void use_workspace(std::function<void*(std::size_t bytes)> take);

  // c = alpha · op(a) · op(b) + beta · c; c has the type of a and b, or fp32.
  void matmul(const Tensor& c, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, float alpha = 1,
              float beta = 0);
  void linear_cross_entropy(const LinearCrossEntropy& call);
  // The rows of logits that it would hold at a time.
  std::int64_t loss_chunk_rows(DType dtype, std::int64_t vocab, std::int64_t tokens) const;
  void swiglu_mlp_forward(const SwigluMlp& call);
  void swiglu_mlp_backward(const SwigluMlp& call);
  void experts_forward(const MixtureOfExperts& call);
  void experts_backward(const MixtureOfExperts& call);
  void attention_forward(const Attention& call);
  void attention_backward(const Attention& call);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace inlay
