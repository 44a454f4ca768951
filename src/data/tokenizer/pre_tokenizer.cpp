#include "data/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "core/utf8.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/characters.h"

namespace inlay::data::tokenizer {

namespace {

// Puts stretches together as a behavior says. They come in order, matches and what lies between them.
class Joiner {
 public:
  Joiner(Behavior behavior, std::vector<Piece>& pieces) : behavior_(behavior), pieces_(pieces), first_(pieces.size()) {}

  void add(Piece piece, bool is_match) {
    const bool after_match = std::exchange(after_match_, is_match);
    const bool begun = pieces_.size() > first_;
    bool joins = false;
    switch (behavior_) {
      case Behavior::removed:
        if (is_match) return;
        break;
      case Behavior::isolated: break;
      case Behavior::merged_with_previous: joins = is_match && !after_match; break;
      case Behavior::merged_with_next: joins = !is_match && after_match; break;
      case Behavior::contiguous: joins = is_match == after_match; break;
    }
    if (joins && begun) {
      pieces_.back().end = piece.end;
    } else {
      pieces_.push_back(piece);
    }
  }

  // Matches may be empty; pieces may not.
  void finish() {
    const auto begin = pieces_.begin() + static_cast<std::ptrdiff_t>(first_);
    pieces_.erase(std::remove_if(begin, pieces_.end(), [](Piece p) { return p.begin == p.end; }), pieces_.end());
  }

 private:
  Behavior behavior_;
  std::vector<Piece>& pieces_;
  std::size_t first_;
  bool after_match_ = false;
};

void find_classes(std::string_view text, std::uint8_t classes, std::vector<Piece>& matches) {
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text.data() + at);
    if ((classes_of(c.value) & classes) != 0) matches.push_back(make_piece(at, at + c.bytes));
    at += c.bytes;
  }
}

// Cuts one piece into next_pieces.
void split_piece(const Split& step, Piece piece, PreTokens& tokens) {
  const std::string_view text = text_of(tokens.text, piece);
  const std::size_t first = tokens.next_pieces.size();
  if (step.known != nullptr) {
    step.known(text, tokens.next_pieces);
  } else {
    tokens.matches.clear();
    if (const auto* pattern = std::get_if<Pattern>(&step.at)) {
      pattern->find(text, tokens.matches);
    } else {
      find_classes(text, std::get<std::uint8_t>(step.at), tokens.matches);
    }
    Joiner joiner(step.behavior, tokens.next_pieces);
    std::uint32_t at = 0;
    for (const Piece match : tokens.matches) {
      if (match.begin > at) joiner.add({at, match.begin}, step.invert);
      joiner.add(match, !step.invert);
      at = match.end;
    }
    if (at < text.size()) joiner.add(make_piece(at, text.size()), step.invert);
    joiner.finish();
  }
  for (std::size_t i = first; piece.begin > 0 && i < tokens.next_pieces.size(); ++i) {
    tokens.next_pieces[i].begin += piece.begin;
    tokens.next_pieces[i].end += piece.begin;
  }
}

void run(const Split& step, bool, PreTokens& tokens) {
  tokens.next_pieces.clear();
  for (const Piece piece : tokens.pieces) split_piece(step, piece, tokens);
  tokens.pieces.swap(tokens.next_pieces);
}

// Rewrites every piece: rewrite(text, first) appends to next_storage.
template <class Rewrite>
void rewrite_pieces(PreTokens& tokens, const Rewrite& rewrite) {
  tokens.next_storage.clear();
  for (Piece& piece : tokens.pieces) {
    const std::size_t begin = tokens.next_storage.size();
    rewrite(text_of(tokens.text, piece), piece.begin == 0);
    piece = make_piece(begin, tokens.next_storage.size());
  }
  tokens.storage.swap(tokens.next_storage);
  tokens.text = tokens.storage;
}

void run(const ByteLevel& step, bool, PreTokens& tokens) {
  if (step.add_prefix_space) {
    rewrite_pieces(tokens, [&](std::string_view text, bool) {
      if (!text.starts_with(' ')) tokens.next_storage += ' ';
      tokens.next_storage += text;
    });
  }
  if (step.use_regex) {
    static const SplitFunction split = known_split(gpt2_split);
    run(Split{.known = split}, false, tokens);
  }
}

void run(const Metaspace& step, bool at_start, PreTokens& tokens) {
  rewrite_pieces(tokens, [&](std::string_view text, bool first) {
    const bool wanted =
        step.prepend == Metaspace::Prepend::always || (step.prepend == Metaspace::Prepend::first && at_start && first);
    if (wanted && !text.starts_with(' ') && !text.starts_with(step.replacement))
      tokens.next_storage += step.replacement;
    for (const char c : text) {
      if (c == ' ') {
        tokens.next_storage += step.replacement;
      } else {
        tokens.next_storage += c;
      }
    }
  });
  if (!step.split) return;
  tokens.next_pieces.clear();
  for (const Piece piece : tokens.pieces) {
    const std::string_view text = text_of(tokens.text, piece);
    std::size_t begin = 0;
    for (std::size_t at = text.find(step.replacement); at != text.npos;
         at = text.find(step.replacement, at + step.replacement.size())) {
      if (at > begin) tokens.next_pieces.push_back(make_piece(piece.begin + begin, piece.begin + at));
      begin = at;
    }
    tokens.next_pieces.push_back(make_piece(piece.begin + begin, piece.end));
  }
  tokens.pieces.swap(tokens.next_pieces);
}

void spell_bytes(PreTokens& tokens) {
  rewrite_pieces(tokens, [&](std::string_view text, bool) {
    for (const char c : text) tokens.next_storage += byte_alphabet()[static_cast<unsigned char>(c)];
  });
}

void unspell_bytes(PreTokens& tokens) {
  rewrite_pieces(tokens, [&](std::string_view text, bool) {
    const auto bytes = spelt_bytes(text);
    INLAY_ASSERT(bytes.has_value(), "a pre-tokenizer behind ByteLevel has made text of its own");
    tokens.next_storage += *bytes;
  });
}

Behavior parse_behavior(const io::Json& json) {
  constexpr std::array<std::pair<std::string_view, Behavior>, 5> names = {
      {{"Removed", Behavior::removed},
       {"Isolated", Behavior::isolated},
       {"MergedWithPrevious", Behavior::merged_with_previous},
       {"MergedWithNext", Behavior::merged_with_next},
       {"Contiguous", Behavior::contiguous}}};
  const std::string name = json.string("behavior");
  for (const auto& [known, behavior] : names) {
    if (name == known) return behavior;
  }
  json.fail("behavior", fmt::format("expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous, "
                                    "got {}",
                                    io::in_quotes(name)));
}

Split parse_split(const io::Json& json) {
  Split split{.at = Pattern::parse(json.object("pattern")),
              .behavior = parse_behavior(json),
              .invert = json.find_boolean("invert").value_or(false)};
  const auto& pattern = std::get<Pattern>(split.at);
  // The known ones leave nothing between their matches: isolated or removed in between, it is the same.
  const bool plain =
      (split.behavior == Behavior::isolated && !split.invert) || (split.behavior == Behavior::removed && split.invert);
  if (pattern.is_regex() && plain) split.known = known_split(pattern.source());
  return split;
}

}  // namespace

Metaspace parse_metaspace(const io::Json& json) {
  Metaspace result{.replacement = json.string("replacement"), .split = json.find_boolean("split").value_or(true)};
  const std::string& text = result.replacement;
  if (text.empty() || code_point_at(text.data()).bytes != text.size()) {
    json.fail("replacement", fmt::format("expected one character, got {}", io::in_quotes(text)));
  }
  const std::string scheme = json.find_string("prepend_scheme")
                                 .value_or(json.find_boolean("add_prefix_space").value_or(true) ? "always" : "never");
  if (scheme == "always") {
    result.prepend = Metaspace::Prepend::always;
  } else if (scheme == "first") {
    result.prepend = Metaspace::Prepend::first;
  } else if (scheme == "never") {
    result.prepend = Metaspace::Prepend::never;
  } else {
    json.fail("prepend_scheme", fmt::format("expected always, first or never, got {}", io::in_quotes(scheme)));
  }
  return result;
}

PreTokenizer PreTokenizer::parse(const io::Json& json) {
  PreTokenizer result;
  result.add(json);
  if (result.spelt_from_ >= result.steps_.size()) result.spelt_from_ = 0;  // ByteLevel is the last: nobody sees it
  return result;
}

void PreTokenizer::add(const io::Json& json) {
  const std::string type = json.expect_object().string("type");
  if (type == "Sequence") {
    for (const io::Json& step : json.array("pretokenizers")) add(step);
  } else if (type == "ByteLevel") {
    if (byte_level_) json.fail("ByteLevel occurs here a second time");
    steps_.emplace_back(ByteLevel{.add_prefix_space = json.boolean("add_prefix_space"),
                                  .use_regex = json.find_boolean("use_regex").value_or(true)});
    byte_level_ = true;
    spelt_from_ = steps_.size();
  } else if (type == "Metaspace") {
    if (byte_level_) json.fail("Metaspace after ByteLevel is not supported");
    steps_.emplace_back(parse_metaspace(json));
  } else if (type == "Split") {
    steps_.emplace_back(parse_split(json));
  } else if (type == "Digits") {
    const bool each = json.boolean("individual_digits");
    steps_.emplace_back(
        Split{.at = std::uint8_t{number}, .behavior = each ? Behavior::isolated : Behavior::contiguous});
  } else if (type == "Punctuation") {
    const Behavior behavior = json.has("behavior") ? parse_behavior(json) : Behavior::isolated;
    steps_.emplace_back(Split{.at = std::uint8_t{punctuation}, .behavior = behavior});
  } else if (type == "WhitespaceSplit") {
    steps_.emplace_back(Split{.at = std::uint8_t{space}, .behavior = Behavior::removed});
  } else if (type == "Whitespace") {
    steps_.emplace_back(
        Split{.at = Pattern::regex(json, R"(\w+|[^\w\s]+)"), .behavior = Behavior::removed, .invert = true});
  } else {
    json.fail("type", fmt::format("the pre-tokenizer {} is not supported; expected one of Sequence, ByteLevel, Split, "
                                  "Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit",
                                  io::in_quotes(type)));
  }
}

void PreTokenizer::apply(std::string_view text, bool at_start, PreTokens& tokens) const {
  tokens.text = text;
  tokens.pieces.clear();
  if (text.empty()) return;
  tokens.pieces.push_back(make_piece(0, text.size()));
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (spelt_from_ > 0 && i == spelt_from_) spell_bytes(tokens);
    std::visit([&](const auto& step) { run(step, at_start, tokens); }, steps_[i]);
  }
  if (spelt_from_ > 0) unspell_bytes(tokens);
}

}  // namespace inlay::data::tokenizer
