#include "data/tokenizer/decoder.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>

#include "core/error.h"
#include "core/utf8.h"
#include "data/tokenizer/byte_alphabet.h"

namespace inlay::data::tokenizer {

namespace {

using Tokens = std::vector<std::string>;

std::string joined(const Tokens& tokens, std::string_view separator = "") {
  std::string text;
  for (const std::string& token : tokens) {
    if (&token != &tokens.front()) text += separator;
    text += token;
  }
  return text;
}

void run(const Replace& step, Tokens& tokens) {
  for (std::string& token : tokens) token = step.pattern.replaced(token, step.content);
}

void run(const SpeltBytes&, Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += spelt_bytes(token).value_or(token);
  tokens = {repaired_utf8(bytes)};
}

// The byte of "<0x1A>".
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  return error == std::errc() && end == token.data() + 5 ? std::optional(static_cast<char>(value)) : std::nullopt;
}

void run(const ByteFallback&, Tokens& tokens) {
  Tokens result;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (is_utf8(bytes)) {
      result.push_back(bytes);
    } else {
      std::string marks;
      for (std::size_t i = 0; i < bytes.size(); ++i) append_utf8(marks, replacement_character);
      result.push_back(marks);
    }
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const auto byte = fallback_byte(token)) {
      bytes += *byte;
    } else {
      flush();
      result.push_back(token);
    }
  }
  flush();
  tokens = std::move(result);
}

void run(const Fuse&, Tokens& tokens) { tokens = {joined(tokens)}; }

void run(const StripCharacter& step, Tokens& tokens) {
  for (std::string& token : tokens) {
    std::string_view rest = token;
    for (std::size_t i = 0; i < step.start && !rest.empty(); ++i) {
      const CodePoint c = code_point_at(rest.data());
      if (c.value != step.content) break;
      rest.remove_prefix(c.bytes);
    }
    for (std::size_t i = 0; i < step.stop && !rest.empty(); ++i) {
      const std::size_t last = previous_character(rest, rest.size());
      if (code_point_at(rest.data() + last).value != step.content) break;
      rest = rest.substr(0, last);
    }
    token = std::string(rest);
  }
}

void run(const Metaspace& step, Tokens& tokens) {
  for (std::string& token : tokens) {
    const bool drops = &token == &tokens.front() && step.prepend != Metaspace::Prepend::never;
    std::string text;
    for (std::size_t at = 0; at < token.size();) {
      if (std::string_view(token).substr(at).starts_with(step.replacement)) {
        if (!drops) text += ' ';
        at += step.replacement.size();
      } else {
        text += token[at++];
      }
    }
    token = std::move(text);
  }
}

StripCharacter parse_strip(const io::Json& json) {
  const std::string content = json.string("content");
  if (content.empty() || code_point_at(content.data()).bytes != content.size()) {
    json.fail("content", fmt::format("expected one character, got {}", io::in_quotes(content)));
  }
  return {.content = code_point_at(content.data()).value,
          .start = static_cast<std::size_t>(json.integer("start", io::non_negative_integer)),
          .stop = static_cast<std::size_t>(json.integer("stop", io::non_negative_integer))};
}

}  // namespace

Decoder Decoder::parse(const io::Json& json) {
  Decoder decoder;
  decoder.present_ = true;
  decoder.place_ = fmt::format("{}: {}", json.source(), json.path());
  decoder.add(json);
  return decoder;
}

void Decoder::add(const io::Json& json) {
  const std::string type = json.expect_object().string("type");
  if (type == "Sequence") {
    for (const io::Json& step : json.array("decoders")) add(step);
  } else if (type == "ByteLevel") {
    steps_.emplace_back(SpeltBytes{});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{Pattern::parse(json.object("pattern")), json.string("content")});
  } else if (type == "ByteFallback") {
    steps_.emplace_back(ByteFallback{});
  } else if (type == "Fuse") {
    steps_.emplace_back(Fuse{});
  } else if (type == "Strip") {
    steps_.emplace_back(parse_strip(json));
  } else if (type == "Metaspace") {
    steps_.emplace_back(parse_metaspace(json));
  } else {
    json.fail("type", fmt::format("the decoder {} is not supported; expected one of Sequence, ByteLevel, Replace, "
                                  "ByteFallback, Fuse, Strip, Metaspace",
                                  io::in_quotes(type)));
  }
}

std::string Decoder::apply(std::vector<std::string> tokens) const {
  const auto bytes = [&] {
    return std::accumulate(tokens.begin(), tokens.end(), std::size_t{0},
                           [](std::size_t sum, const std::string& token) { return sum + token.size(); });
  };
  const std::size_t limit = 64 * bytes() + (std::size_t{1} << 20);
  for (const Step& step : steps_) {
    std::visit([&](const auto& s) { run(s, tokens); }, step);
    if (bytes() > limit) user_error("{}: makes {} bytes from a few tokens: too much", place_, bytes());
  }
  return joined(tokens, present_ ? "" : " ");
}

}  // namespace inlay::data::tokenizer
