#include "jinja/loop.h"

#include <algorithm>

namespace inlay::jinja {

std::optional<Value> Loop::draw() {
  if (counted_) {
    if (rest_.empty()) return std::nullopt;
    Value item = std::move(rest_.back());
    rest_.pop_back();
    return item;
  }
  return source_ ? source_() : std::nullopt;
}

std::optional<Value> Loop::next() {
  std::optional<Value> item = ahead_ ? *std::exchange(ahead_, std::nullopt) : draw();
  if (!item) return std::nullopt;
  if (drawn_++ > 0) before_ = current_;
  current_ = *item;
  return item;
}

const std::optional<Value>& Loop::peek() {
  if (!ahead_) {
    std::optional<Value> item = draw();  // which may ask again
    ahead_ = std::move(item);
  }
  return *ahead_;
}

std::size_t Loop::count() {
  if (!length_) {
    std::vector<Value> rest;
    while (auto item = draw()) rest.push_back(*std::move(item));
    std::ranges::reverse(rest);
    rest_ = std::move(rest);
    counted_ = true;
    length_ = drawn_ + (ahead_ && *ahead_ ? 1 : 0) + rest_.size();
  }
  return *length_;
}

std::optional<Value> Loop::attribute(Runtime& runtime, std::string_view name) {
  if (name == "index") return Value::size(drawn_);
  if (name == "index0") return Value::size(drawn_ - 1);
  if (name == "first") return Value::boolean(drawn_ == 1);
  if (name == "last") return Value::boolean(!peek().has_value());
  if (name == "length") return Value::size(count());
  if (name == "revindex") return Value::integer(static_cast<Integer>(count()) - static_cast<Integer>(drawn_) + 1);
  if (name == "revindex0") return Value::integer(static_cast<Integer>(count()) - static_cast<Integer>(drawn_));
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") return before_ ? *before_ : runtime.undefined("there is no previous item");
  if (name == "nextitem") return peek() ? *peek() : runtime.undefined("there is no next item");
  if (name == "cycle") return runtime.object<BoundMethod>(Value(shared_from_this()), name, cycle);
  if (name == "changed") return runtime.object<BoundMethod>(Value(shared_from_this()), name, changed);
  return std::nullopt;
}

Value Loop::cycle(Runtime&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) fail("no items for cycling given");
  return arguments.positional[(self.as<Loop>()->drawn_ - 1) % arguments.positional.size()];
}

Value Loop::changed(Runtime& runtime, const Value& self, const Arguments& arguments) {
  auto* loop = self.as<Loop>();
  Value now = runtime.tuple(arguments.positional);
  if (loop->compared_ && equal(&runtime.budget(), *loop->compared_, now)) return Value::boolean(false);
  if (!loop->compared_) runtime.keep(loop->shared_from_this());  // what is compared may hold the loop
  loop->compared_ = std::move(now);
  return Value::boolean(true);
}

void Loop::clear() {
  source_ = nullptr;
  current_ = {};
  before_ = compared_ = std::nullopt;
  ahead_ = std::nullopt;
  rest_.clear();
}

}  // namespace inlay::jinja
