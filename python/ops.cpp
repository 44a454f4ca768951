#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <inlay/ops.h>

#include "arrays.h"

namespace inlay::python {

namespace {

using nb::literals::operator""_a;

// (address, type, shape, strides), or None.
Tensor tensor_of(nb::handle given) {
  Tensor tensor;
  if (given.is_none()) return tensor;
  const auto parts = nb::cast<nb::tuple>(given);
  tensor.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(parts[0]));
  tensor.dtype = static_cast<DType>(nb::cast<int>(parts[1]));
  const auto shape = nb::cast<nb::tuple>(parts[2]), strides = nb::cast<nb::tuple>(parts[3]);
  tensor.rank = static_cast<int>(shape.size());
  for (std::size_t i = 0; i < shape.size() && i < static_cast<std::size_t>(Tensor::max_rank); ++i) {
    tensor.shape[i] = nb::cast<std::int64_t>(shape[i]);
    tensor.strides[i] = nb::cast<std::int64_t>(strides[i]);
  }
  return tensor;
}

// What a call was given by name.
class Given {
 public:
  explicit Given(const nb::kwargs& names) : names_(names) {}
  void operator()(const char* name, Tensor& to) const {
    if (names_.contains(name)) to = tensor_of(names_[name]);
  }
  template <class T>
  void operator()(const char* name, T& to) const {
    if (names_.contains(name)) to = nb::cast<T>(names_[name]);
  }

 private:
  const nb::kwargs& names_;
};

LinearCrossEntropy linear_cross_entropy(const nb::kwargs& names) {
  LinearCrossEntropy c;
  const Given given(names);
  given("hidden", c.hidden), given("weight", c.weight), given("bias", c.bias), given("targets", c.targets);
  given("rows", c.rows), given("class_weights", c.class_weights), given("token_weights", c.token_weights);
  given("upstream", c.upstream), given("label_smoothing", c.label_smoothing), given("softcap", c.softcap);
  given("z_loss", c.z_loss), given("normalizer", c.normalizer), given("chunk_rows", c.chunk_rows);
  given("loss", c.loss), given("loss_of_z", c.loss_of_z), given("correct", c.correct);
  given("predicted", c.predicted), given("dhidden", c.dhidden), given("dweight", c.dweight), given("dbias", c.dbias);
  int reduction = 0;
  given("reduction", reduction);
  c.reduction = static_cast<LinearCrossEntropy::Reduction>(reduction);
  return c;
}

SwigluMlp swiglu_mlp(const nb::kwargs& names) {
  SwigluMlp c;
  const Given given(names);
  given("x", c.x), given("gate", c.gate), given("up", c.up), given("down", c.down), given("tile", c.tile);
  given("out", c.out), given("gate_up", c.gate_up), given("dout", c.dout), given("dx", c.dx);
  given("dgate", c.dgate), given("dup", c.dup), given("ddown", c.ddown);
  return c;
}

MixtureOfExperts experts(const nb::kwargs& names) {
  MixtureOfExperts c;
  const Given given(names);
  given("x", c.x), given("router", c.router), given("gate_up", c.gate_up), given("down", c.down);
  given("chosen", c.chosen), given("normalized", c.normalized), given("tile", c.tile), given("out", c.out);
  given("dout", c.dout), given("dx", c.dx);
  given("drouter", c.drouter), given("dgate_up", c.dgate_up), given("ddown", c.ddown);
  return c;
}

Attention attention(const nb::kwargs& names) {
  Attention c;
  const Given given(names);
  given("q", c.q), given("k", c.k), given("v", c.v), given("out", c.out), given("lse", c.lse);
  given("cu_seqlens", c.cu_seqlens), given("device_cu_seqlens", c.device_cu_seqlens), given("scale", c.scale);
  given("window", c.window), given("mask", c.mask), given("score", c.score);
  given("prefix_lengths", c.prefix_lengths), given("head_bias", c.head_bias), given("sinks", c.sinks);
  given("deterministic", c.deterministic), given("dout", c.dout);
  given("dq", c.dq), given("dk", c.dk), given("dv", c.dv), given("dsinks", c.dsinks);
  return c;
}

// Ops of one device. On a GPU a call only launches, and Python's lock keeps calls of different threads apart; on a CPU
// others go on meanwhile, and every thread has its own.
struct PythonOps {
  explicit PythonOps(bool cuda) : ops(cuda ? Device::cuda : Device::cpu), on_cuda(cuda) {}

  template <class Work>
  void run(std::uintptr_t stream, const std::function<std::uintptr_t(std::size_t)>& take, const Work& work) {
    ops.use_stream(reinterpret_cast<void*>(stream));
    ops.use_workspace([&](std::size_t bytes) { return reinterpret_cast<void*>(take(bytes)); });
    if (on_cuda) {
      work();
    } else {
      const nb::gil_scoped_release released;
      work();
    }
  }

  Ops ops;
  bool on_cuda;
};

using Take = std::function<std::uintptr_t(std::size_t)>;

template <class Call>
auto method(void (Ops::*op)(const Call&), Call (*parse)(const nb::kwargs&)) {
  return [=](PythonOps& self, std::uintptr_t stream, const Take& take, const nb::kwargs& names) {
    const Call call = parse(names);
    self.run(stream, take, [&] { (self.ops.*op)(call); });
  };
}

}  // namespace

void add_ops(nb::module_& m) {
  nb::class_<PythonOps>(m, "Ops")
      .def(nb::init<bool>(), "cuda"_a)
      .def("linear_cross_entropy", method(&Ops::linear_cross_entropy, linear_cross_entropy))
      .def("swiglu_mlp_forward", method(&Ops::swiglu_mlp_forward, swiglu_mlp))
      .def("swiglu_mlp_backward", method(&Ops::swiglu_mlp_backward, swiglu_mlp))
      .def("experts_forward", method(&Ops::experts_forward, experts))
      .def("experts_backward", method(&Ops::experts_backward, experts))
      .def("attention_forward", method(&Ops::attention_forward, attention))
      .def("attention_backward", method(&Ops::attention_backward, attention))
      .def("matmul",
           [](PythonOps& self, std::uintptr_t stream, const Take& take, nb::handle c, nb::handle a, bool transpose_a,
              nb::handle b, bool transpose_b) {
             const Tensor out = tensor_of(c), left = tensor_of(a), right = tensor_of(b);
             self.run(stream, take, [&] { self.ops.matmul(out, left, transpose_a, right, transpose_b); });
           })
      .def("loss_chunk_rows", [](const PythonOps& self, int dtype, std::int64_t vocab, std::int64_t tokens) {
        return self.ops.loss_chunk_rows(static_cast<DType>(dtype), vocab, tokens);
      });
}

}  // namespace inlay::python
