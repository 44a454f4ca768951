#include "bench/bench.h"
#include "core/utf8.h"
#include "data/tokenizer/tokenizer.h"
#include "io/file.h"

namespace inlay::bench {

namespace {

struct TokenizeArguments {
  std::string model, file;
  std::size_t document_bytes = 4096;
  int threads = 1, iterations = 10;
};

// Documents of about so many bytes, each ending with a line.
std::vector<std::string> documents_of(const std::string& text, std::size_t bytes) {
  std::vector<std::string> documents;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t line_end = text.find('\n', std::min(at + bytes, text.size()));
    const std::size_t end = line_end == text.npos ? text.size() : line_end + 1;
    documents.push_back(text.substr(at, end - at));
    at = end;
  }
  return documents;
}

Report run(const TokenizeArguments& a) {
  backend::Exec exec = backend::Exec::runner(Device::cpu, 4096);
  const auto began = std::chrono::steady_clock::now();
  const data::Tokenizer tokenizer = data::Tokenizer::load(a.model);
  const double load_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
  const std::string text = io::read_file(a.file, std::size_t{1} << 30);
  const std::vector<std::string> documents = documents_of(text, a.document_bytes);
  std::vector<std::vector<std::int32_t>> ids;
  const double ms =
      median_ms(exec, a.iterations, [&] { ids = tokenizer.encode(std::span(documents), false, a.threads); });
  std::size_t decoded_bytes = 0, tokens = 0;
  const double decode_ms = median_ms(exec, a.iterations, [&] {
    decoded_bytes = 0;
    for (const std::vector<std::int32_t>& document : ids) decoded_bytes += tokenizer.decode(document, false).size();
  });
  for (const std::vector<std::int32_t>& document : ids) tokens += document.size();
  bool valid = true;
  const double floor = median_ms(exec, a.iterations, [&] { valid = is_utf8(text) && valid; });
  const double megabytes = static_cast<double>(text.size()) * 1e-6;
  return {{"ms", ms},
          {"mb_per_s", megabytes / ms * 1e3},
          {"decode_mb_per_s", static_cast<double>(decoded_bytes) * 1e-6 / decode_ms * 1e3},
          {"load_ms", load_ms},
          {"peak_extra_bytes", tokens * sizeof(std::int32_t)},
          {"floor_ms", floor},  // one pass over the bytes
          {"bytes", text.size()},
          {"documents", documents.size()},
          {"tokens", tokens},
          {"threads", a.threads},
          {"valid_utf8", valid},
          {"model", a.model}};
}

}  // namespace

Benchmark tokenize_benchmark() {
  return {"tokenize", "text to token ids, document by document", [](CLI::App& command) -> std::function<Report()> {
            auto a = std::make_shared<TokenizeArguments>();
            command.add_option("--model", a->model, "Folder with tokenizer.json")->required();
            command.add_option("--file", a->file, "Text to tokenize")->required();
            command.add_option("--document-bytes", a->document_bytes, "Cut into documents of about this size")
                ->check(CLI::PositiveNumber);
            command.add_option("--threads", a->threads)->check(CLI::PositiveNumber);
            command.add_option("--iterations", a->iterations, "Timed calls, of which the median is reported")
                ->check(CLI::PositiveNumber);
            return [a] { return run(*a); };
          }};
}

}  // namespace inlay::bench
