#include "data/tokenizer/post_processor.h"

#include <utility>

#include <fmt/format.h>

#include "data/tokenizer/vocabulary.h"

namespace inlay::data::tokenizer {

PostProcessor PostProcessor::parse(const io::Json& json) {
  PostProcessor result;
  result.add(json);
  return result;
}

void PostProcessor::add(const io::Json& json) {
  const std::string type = json.expect_object().string("type");
  if (type == "Sequence") {
    for (const io::Json& step : json.array("processors")) add(step);
  } else if (type == "TemplateProcessing") {
    add_template(json);
  } else if (type != "ByteLevel") {  // which changes offsets only, and those are not kept here
    json.fail("type",
              fmt::format("the post-processor {} is not supported; expected one of Sequence, TemplateProcessing, "
                          "ByteLevel",
                          io::in_quotes(type)));
  }
}

void PostProcessor::add_template(const io::Json& json) {
  if (has_template_) json.fail("a second TemplateProcessing is not supported");
  std::vector<std::int32_t> first, last;
  bool text_seen = false;
  for (const io::Json& item : json.array("single")) {
    if (item.expect_object().has("Sequence")) {
      const std::string name = item.object("Sequence").string("id");
      if (text_seen || name != "A")
        item.fail("Sequence", "expected the text \"A\" once in a template for single texts");
      text_seen = true;
      continue;
    }
    const std::string name = item.object("SpecialToken").string("id");
    std::vector<std::int32_t>& side = text_seen ? last : first;
    const io::Json token = json.object("special_tokens").object(name);
    for (const std::int64_t id : token.integers("ids", {.min = 0, .max = Vocabulary::max_id})) {
      side.push_back(static_cast<std::int32_t>(id));
    }
  }
  if (!text_seen) json.fail("single", "has no {\"Sequence\": {\"id\": \"A\"}}, where the text would go");
  before = std::move(first);
  behind = std::move(last);
  has_template_ = true;
}

}  // namespace inlay::data::tokenizer
