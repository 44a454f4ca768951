#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <inlay/tensor.h>

namespace inlay::python {

namespace nb = nanobind;

template <class T>
using Array = nb::ndarray<nb::numpy, T>;
using Ids = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Hands the numbers over to Python without copying them.
template <class T>
Array<T> array(std::vector<T> numbers, const std::vector<std::size_t>& shape) {
  auto* const owned = new std::vector<T>(std::move(numbers));
  const nb::capsule owner(owned, [](void* memory) noexcept { delete static_cast<std::vector<T>*>(memory); });
  return Array<T>(owned->data(), shape.size(), shape.data(), owner);
}

template <class T>
Array<T> array(std::vector<T> numbers) {
  const std::size_t size = numbers.size();
  return array(std::move(numbers), {size});
}

inline std::vector<std::int32_t> to_vector(const Ids& ids) { return {ids.data(), ids.data() + ids.size()}; }

// The texts of a list, which must stay alive: what they are encoded as is kept with them.
inline std::vector<std::string_view> views(const nb::list& texts) {
  std::vector<std::string_view> result;
  result.reserve(texts.size());
  for (const nb::handle text : texts) {
    Py_ssize_t size = 0;
    const char* const bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (bytes == nullptr) throw nb::python_error();
    result.emplace_back(bytes, static_cast<std::size_t>(size));
  }
  return result;
}

void add_ops(nb::module_& module);

}  // namespace inlay::python
