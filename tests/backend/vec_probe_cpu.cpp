#include "backend/cpu/vec.h"
#include "backend/vec_probe.h"

namespace inlay::testing {

namespace {

namespace cpu = backend::cpu;
using cpu::f32v;
using cpu::lanes;

template <f32v (*function)(f32v)>
void each(float* y, const float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += lanes) cpu::store(y + i, function(cpu::load(x + i)));
}

template <class To, class From>
void convert(To* y, const From* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += lanes) cpu::store(y + i, cpu::load(x + i));
}

void fused(float* y, const float* a, const float* b, const float* c, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += lanes) {
    cpu::store(y + i, cpu::fused(cpu::load(a + i), cpu::load(b + i), cpu::load(c + i)));
  }
}

void least_and_most(float* least, float* most, const float* a, const float* b) {
  cpu::store(least, cpu::minimum(cpu::load(a), cpu::load(b)));
  cpu::store(most, cpu::maximum(cpu::load(a), cpu::load(b)));
}

template <class T>
void load_some(float* y, const T* x, std::int64_t n) {
  cpu::store(y, cpu::load_some(x, n));
}
template <class T>
void store_some(T* y, const float* x, std::int64_t n) {
  cpu::store_some(y, cpu::load(x), n);
}

}  // namespace

extern "C" const VecProbe INLAY_TABLE = {
    .lanes = lanes,
    .exp = each<cpu::exp>,
    .tanh = each<cpu::tanh>,
    .sigmoid = each<cpu::sigmoid>,
    .square_root = each<cpu::square_root>,
    .fused = fused,
    .narrow = convert<bf16, float>,
    .widen = convert<float, bf16>,
    .to_half = convert<f16, float>,
    .from_half = convert<float, f16>,
    .sum = [](const float* x) { return cpu::sum(cpu::load(x)); },
    .largest = [](const float* x) { return cpu::largest(cpu::load(x)); },
    .least_and_most = least_and_most,
    .load_some = load_some<float>,
    .load_some_bf16 = load_some<bf16>,
    .store_some = store_some<float>,
    .store_some_bf16 = store_some<bf16>,
};

}  // namespace inlay::testing
