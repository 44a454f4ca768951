#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <nanobind/nanobind.h>

namespace inlay::python {

namespace nb = nanobind;

// Appends what json.dumps(value, ensure_ascii=False) says, several times as fast for what conversations are made of:
// texts, lists, dicts. Everything else is left to json.dumps.
class JsonText {
 public:
  std::string text;

  void append(nb::handle value) {
    PyObject* const object = value.ptr();
    if (PyUnicode_CheckExact(object)) return append_string(object);
    if (object == Py_None) return say("null");
    if (PyBool_Check(object)) return say(object == Py_True ? "true" : "false");
    const bool deep = depth_ >= max_depth;  // or without end: json.dumps knows what to say
    if (PyList_CheckExact(object) && !deep) return append_list(object);
    if (PyDict_CheckExact(object) && !deep && has_text_keys(object)) return append_dict(object);
    say(nb::cast<std::string>(dumps()(value, nb::arg("ensure_ascii") = false)));
  }

 private:
  static constexpr int max_depth = 100;

  static nb::object dumps() { return nb::module_::import_("json").attr("dumps"); }

  static bool has_text_keys(PyObject* dict) {
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value) != 0;) {
      if (!PyUnicode_CheckExact(key)) return false;
    }
    return true;
  }

  void say(std::string_view words) { text += words; }

  void append_string(PyObject* string) {
    Py_ssize_t size = 0;
    const char* const bytes = PyUnicode_AsUTF8AndSize(string, &size);
    if (bytes == nullptr) throw nb::python_error();
    const std::string_view all(bytes, static_cast<std::size_t>(size));
    text += '"';
    std::size_t begin = 0;
    for (std::size_t at = 0; at < all.size(); ++at) {
      const auto byte = static_cast<unsigned char>(all[at]);
      if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
      say(all.substr(begin, at - begin));
      begin = at + 1;
      append_escape(byte);
    }
    say(all.substr(begin));
    text += '"';
  }

  void append_escape(unsigned char byte) {
    constexpr std::string_view special = "\"\\\b\f\n\r\t", names = "\"\\bfnrt", digits = "0123456789abcdef";
    text += '\\';
    if (const std::size_t known = special.find(static_cast<char>(byte)); known != special.npos) {
      text += names[known];
      return;
    }
    say("u00");
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }

  void append_list(PyObject* list) {
    ++depth_;
    text += '[';
    for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
      if (i > 0) text += ',';
      append(nb::borrow(PyList_GetItem(list, i)));
    }
    text += ']';
    --depth_;
  }

  void append_dict(PyObject* dict) {
    ++depth_;
    text += '{';
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0, first = 0; PyDict_Next(dict, &at, &key, &value) != 0;) {
      if (std::exchange(first, 1) != 0) text += ',';
      append_string(key);
      text += ':';
      append(nb::borrow(value));
    }
    text += '}';
    --depth_;
  }

  int depth_ = 0;
};

}  // namespace inlay::python
