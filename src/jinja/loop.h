#pragma once

#include <functional>

#include "jinja/objects.h"

namespace inlay::jinja {

// The variable "loop" inside a for. It draws the items one by one, and ahead only where a template asks what is to
// come, as the items may depend on what the body does.
class Loop final : public Object {
 public:
  using Source = std::function<std::optional<Value>()>;

  // length: of all items, where it is known; depth: of the values that are walked over.
  Loop(Source source, std::optional<std::size_t> length, int depth)
      : source_(std::move(source)), length_(length), depth_(depth + 1) {}

  std::optional<Value> next();
  // The source is gone; no more can be drawn.
  void finish() { source_ = nullptr; }

  std::string_view type() const override { return "jinja2.runtime.LoopContext"; }
  std::optional<std::size_t> length() const override { return length_; }
  int depth() const override { return depth_; }
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;
  void clear() override;

 private:
  static Value cycle(Runtime& runtime, const Value& self, const Arguments& arguments);
  static Value changed(Runtime& runtime, const Value& self, const Arguments& arguments);
  std::optional<Value> draw();
  const std::optional<Value>& peek();
  std::size_t count();  // of all items

  Source source_;
  std::optional<std::size_t> length_;
  int depth_;
  std::size_t drawn_ = 0;  // loop.index
  Value current_;
  std::optional<Value> before_, compared_;
  std::optional<std::optional<Value>> ahead_;  // drawn, but not yet given out: an item, or the end
  std::vector<Value> rest_;  // behind that, the last one first: all the others, once they were counted
  bool counted_ = false;
};

}  // namespace inlay::jinja
