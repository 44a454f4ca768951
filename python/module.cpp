#include <signal.h>

#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <inlay/inlay.h>

#include "arrays.h"
#include "json_text.h"

// The Python module below python/inlay, over the public C++ surface. Nothing here computes: it moves arguments, and
// lets go of Python's lock where work begins.
namespace inlay::python {

namespace {

using nb::literals::operator""_a;
using Released = nb::gil_scoped_release;

void add_tokenizer(nb::module_& m) {
  nb::class_<Tokenizer>(m, "Tokenizer")
      .def(nb::init<const std::string&>(), "path"_a)
      .def(
          "encode",
          [](const Tokenizer& self, std::string_view text, bool special) {
            std::vector<std::int32_t> ids;
            {
              const Released released;
              ids = self.encode(text, special);
            }
            return array(std::move(ids));
          },
          "text"_a, "special"_a = true)
      .def(
          "encode_flat",
          [](const Tokenizer& self, const nb::list& texts, bool special, int threads) {
            const std::vector<std::string_view> all = views(texts);
            std::vector<std::int32_t> ids;
            std::vector<std::int64_t> places = {0};
            {
              const Released released;
              const std::vector<std::vector<std::int32_t>> parts = self.encode(all, special, threads);
              std::size_t total = 0;
              for (const auto& part : parts) total += part.size();
              ids.reserve(total);
              places.reserve(parts.size() + 1);
              for (const auto& part : parts) {
                ids.insert(ids.end(), part.begin(), part.end());
                places.push_back(static_cast<std::int64_t>(ids.size()));
              }
            }
            return nb::make_tuple(array(std::move(ids)), array(std::move(places)));
          },
          "texts"_a, "special"_a, "threads"_a)
      .def(
          "decode",
          [](const Tokenizer& self, const Ids& ids, bool skip_special) {
            const Released released;
            return self.decode({ids.data(), ids.size()}, skip_special);
          },
          "ids"_a, "skip_special"_a = true)
      .def(
          "decode_batch",
          [](const Tokenizer& self, const std::vector<Ids>& texts, bool skip_special, int threads) {
            std::vector<std::vector<std::int32_t>> all;
            for (const Ids& ids : texts) all.push_back(to_vector(ids));
            const Released released;
            return self.decode(all, skip_special, threads);
          },
          "texts"_a, "skip_special"_a, "threads"_a)
      .def("id_of", &Tokenizer::id_of, "token"_a)
      .def("token_of", &Tokenizer::token_of, "id"_a)
      .def_prop_ro("vocab_size", &Tokenizer::vocab_size)
      .def_prop_ro("bos", &Tokenizer::bos)
      .def_prop_ro("eos", &Tokenizer::eos)
      .def_prop_ro("pad", &Tokenizer::pad);

  nb::class_<ChatTemplate>(m, "ChatTemplate")
      .def(nb::init<const std::string&>(), "path"_a)
      .def_static("from_text", &ChatTemplate::from_text, "text"_a)
      .def(
          "render",
          [](const ChatTemplate& self, const nb::list& conversations, bool add_generation_prompt, std::string tools,
             std::string documents, std::string variables, int threads) {
            std::vector<JsonText> texts(conversations.size());
            std::vector<std::string_view> all;
            for (std::size_t i = 0; i < texts.size(); ++i) {
              texts[i].append(conversations[i]);
              all.emplace_back(texts[i].text);
            }
            const ChatTemplate::Options options{.add_generation_prompt = add_generation_prompt,
                                                .tools = std::move(tools),
                                                .documents = std::move(documents),
                                                .variables = std::move(variables)};
            const Released released;
            return self.render(all, options, threads);
          },
          "conversations"_a, "add_generation_prompt"_a, "tools"_a, "documents"_a, "variables"_a, "threads"_a);
}

void add_data(nb::module_& m) {
  nb::class_<Dataset>(m, "Dataset")
      .def(
          "__init__",
          [](Dataset* self, const std::string& path, std::string model, std::string format, bool skip_bad_rows,
             int threads) {
            const Dataset::Options options{.model = std::move(model),
                                           .format = std::move(format),
                                           .skip_bad_rows = skip_bad_rows,
                                           .threads = threads};
            const Released released;
            new (self) Dataset(path, options);
          },
          "path"_a, "model"_a, "format"_a, "skip_bad_rows"_a, "threads"_a)
      .def("__len__", &Dataset::size)
      .def("length", &Dataset::length, "index"_a)
      .def(
          "read",
          [](const Dataset& self, std::int64_t index) {
            TrainingDocument document;
            {
              const Released released;
              document = self.read(index);
            }
            return nb::make_tuple(array(std::move(document.input_ids)), array(std::move(document.labels)),
                                  array(std::move(document.weights)));
          },
          "index"_a)
      .def_prop_ro("rows", [](const Dataset& self) {
        const Dataset::Rows rows = self.rows();
        return nb::make_tuple(rows.all, rows.skipped, rows.unlabelled);
      });
}

void add_training(nb::module_& m) {
  nb::class_<Configuration>(m, "Configuration")
      .def(
          "__init__",
          [](Configuration* self, std::string yaml, std::string name,
             std::vector<std::pair<std::string, std::string>> overrides) {
            new (self) Configuration{std::move(yaml), std::move(name), std::move(overrides)};
          },
          "yaml"_a, "name"_a, "overrides"_a)
      .def_static("read", &Configuration::read, "path"_a)
      .def_rw("overrides", &Configuration::overrides);
  m.def(
      "plan",
      [](const Configuration& configuration) {
        const Released released;
        return plan_training(configuration);
      },
      "configuration"_a);
  m.def(
      "train",
      [](const Configuration& configuration, bool resume, bool quiet,
         std::function<bool(const std::string&)> listener) {
        const TrainingOptions options{.resume = resume, .quiet = quiet, .on_metrics = std::move(listener)};
        const Released released;
        return train_model(configuration, options) == TrainingEnd::finished;
      },
      "configuration"_a, "resume"_a, "quiet"_a, "on_metrics"_a);
  m.def("stop_training", &stop_training);
}

// Whether Ctrl-C waits for this thread to be done: while it computes, signals are kept from it.
bool interrupted() {
  sigset_t pending;
  return ::sigpending(&pending) == 0 && ::sigismember(&pending, SIGINT) == 1;
}

void add_model(nb::module_& m) {
  nb::class_<Model>(m, "Model")
      .def(
          "__init__",
          [](Model* self, const std::string& folder, std::string device, std::string dtype, std::string adapter) {
            new (self)
                Model(folder, {.device = std::move(device), .dtype = std::move(dtype), .adapter = std::move(adapter)});
          },
          "folder"_a, "device"_a, "dtype"_a, "adapter"_a)
      .def_prop_ro("vocab_size", &Model::vocab_size)
      .def_prop_ro("parameter_count", &Model::parameter_count)
      .def_prop_ro("stop_tokens", &Model::stop_tokens)
      .def(
          "generate",
          [](Model& self, const Ids& prompt, std::int64_t max_new_tokens, std::vector<std::int32_t> stops,
             float temperature, float top_p, std::uint64_t seed, std::int64_t sequence,
             std::optional<std::function<bool(int)>> on_token) {
            const Model::Sampling sampling{
                .max_new_tokens = max_new_tokens,
                .stops = std::move(stops),
                .temperature = temperature,
                .top_p = top_p,
                .seed = seed,
                .sequence = sequence,
                .made = [&](std::int32_t id) { return !interrupted() && (!on_token || (*on_token)(id)); }};
            std::vector<std::int32_t> made;
            {
              const std::vector<std::int32_t> ids = to_vector(prompt);
              const Released released;
              made = self.generate(ids, sampling);
            }
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
            return array(std::move(made));
          },
          "prompt"_a, "max_new_tokens"_a, "stops"_a, "temperature"_a, "top_p"_a, "seed"_a, "sequence"_a,
          "on_token"_a.none())
      .def(
          "logits",
          [](Model& self, const Ids& ids) {
            std::vector<float> logits;
            {
              const std::vector<std::int32_t> tokens = to_vector(ids);
              const Released released;
              logits = self.logits(tokens);
            }
            return array(std::move(logits), {ids.size(), static_cast<std::size_t>(self.vocab_size())});
          },
          "ids"_a)
      .def(
          "grad",
          [](Model& self, const std::vector<std::pair<Ids, Ids>>& documents) {
            std::vector<TrainingDocument> ours;
            for (const auto& [ids, labels] : documents) ours.push_back({to_vector(ids), to_vector(labels), {}});
            Model::Gradients gradients;
            {
              const Released released;
              gradients = self.gradients(ours);
            }
            nb::dict tensors;
            for (Model::NamedTensor& tensor : gradients.tensors) {
              tensors[tensor.name.c_str()] =
                  array(std::move(tensor.values), {tensor.shape.begin(), tensor.shape.end()});
            }
            return nb::make_tuple(gradients.loss, gradients.labels, tensors);
          },
          "documents"_a);
}

}  // namespace

NB_MODULE(_inlay, m) {
  nb::exception<UserError>(m, "UserError", PyExc_ValueError);
  add_tokenizer(m);
  add_data(m);
  add_training(m);
  add_model(m);
  add_ops(m);
  m.def("version", [] {
    const Version v = version();
    nb::dict result;
    result["number"] = v.number;
    result["commit"] = v.commit;
    result["compiler"] = v.compiler;
    result["cuda"] = v.cuda;
    result["kernels"] = v.kernels;
    return result;
  });
}

}  // namespace inlay::python
