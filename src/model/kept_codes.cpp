#include "model/kept_codes.h"

#include <algorithm>

namespace inlay::model {

using ops::Fp8Forms;
using ops::Fp8Role;
using ops::Fp8Use;

InputNeed input_need(const ops::Linear& product, bool made_again) {
  if (made_again) return InputNeed::numbers;
  if (!product.trainable()) return InputNeed::nothing;
  return product.fp8() ? InputNeed::codes : InputNeed::numbers;
}

KeptCodes::KeptCodes(Exec& exec, std::string_view name, const ops::Linear& weight, std::int64_t rows, std::int64_t tile)
    : name_(name), operands_(weight.fp8().value()), tile_(tile) {
  const std::int64_t step = tile > 0 ? tile : std::max<std::int64_t>(rows, 1);
  for (std::int64_t begin = 0; begin < rows; begin += step) {
    tiles_.push_back(ops::keep_fp8(exec, MemoryClass::activations, name_, operands_.settings, Fp8Role::input,
                                   operands_.gradient_input, std::min(step, rows - begin), weight.in_features()));
  }
}

Fp8Forms KeptCodes::encode(Exec& exec, ConstView rows, std::int64_t first) {
  Fp8Forms forms = tiles_.at(number(first));
  if (forms.rows.absent()) {
    forms.rows =
        ops::scratch_fp8(exec, name_, operands_.settings, Fp8Role::input, Fp8Use::rows, rows.dim(0), rows.dim(1)).rows;
  }
  ops::quantise_fp8(exec, forms, rows);
  return forms;
}

const Fp8Forms* KeptCodes::of_tile(std::int64_t first) const { return absent() ? nullptr : &tiles_.at(number(first)); }

}  // namespace inlay::model
