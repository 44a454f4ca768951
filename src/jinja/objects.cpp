#include "jinja/objects.h"

namespace inlay::jinja {
namespace {

// Far beyond any use, and far enough from the end of the type that no sum of two overflows.
constexpr Integer max_bound = Integer{1} << 100;

std::size_t steps_between(Integer start, Integer stop, Integer step) {
  for (const Integer bound : {start, stop, step}) {
    if (bound > max_bound || bound < -max_bound) fail("range() arguments beyond 100 bits are not supported");
  }
  const Integer span = step > 0 ? stop - start : start - stop;
  if (span <= 0) return 0;
  const Integer count = (span - 1) / (step > 0 ? step : -step) + 1;
  if (count > static_cast<Integer>(Range::max_length)) {
    fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", Range::max_length);
  }
  return static_cast<std::size_t>(count);
}

}  // namespace

Range::Range(Integer start, Integer stop, Integer step) : start_(start), stop_(stop), step_(step) {
  if (step == 0) fail("range() arg 3 must not be zero");
  size_ = steps_between(start, stop, step);
}

bool Range::holds(Integer value) const {
  if (size_ == 0) return false;
  const Integer last = at(size_ - 1);
  const bool inside = step_ > 0 ? start_ <= value && value <= last : last <= value && value <= start_;
  return inside && (value - start_) % step_ == 0;
}

Value Range::part(Runtime& runtime, Integer first, Integer end, Integer stride) const {
  return runtime.object<Range>(start_ + first * step_, start_ + end * step_, stride * step_);
}

void Range::show(Builder& out) const {
  out.append(step_ == 1 ? fmt::format("range({}, {})", start_, stop_)
                        : fmt::format("range({}, {}, {})", start_, stop_, step_));
}

bool Range::equals(const Object& other) const {
  const auto* range = dynamic_cast<const Range*>(&other);
  if (range == nullptr || range->size_ != size_) return false;
  return size_ == 0 || (start_ == range->start_ && (size_ == 1 || step_ == range->step_));
}

Value DictView::at(Runtime& runtime, std::size_t index) const {
  const auto& [key, value] = dict().entries()[index];
  if (part_ == Part::keys) return key;
  if (part_ == Part::values) return value;
  return runtime.tuple({key, value});
}

std::string_view DictView::type() const {
  return part_ == Part::keys ? "dict_keys" : part_ == Part::values ? "dict_values" : "dict_items";
}

void DictView::show(Builder& out) const {
  out.append(type());
  out.append("([");
  bool first = true;
  for (const auto& [key, value] : dict().entries()) {
    if (!first) out.append(", ");
    first = false;
    if (part_ == Part::items) out.append("(");
    if (part_ != Part::values) append_repr(out, key);
    if (part_ == Part::items) out.append(", ");
    if (part_ != Part::keys) append_repr(out, value);
    if (part_ == Part::items) out.append(")");
  }
  out.append("])");
}

std::optional<Value> Iterator::next(Runtime& runtime) {
  const Level level(runtime.budget());  // one may draw from another
  std::optional<Value> item = source_();
  return item;
}

Value make_iterator(Runtime& runtime, std::vector<Value> items, std::string_view type) {
  const Value list = runtime.list(std::move(items));
  const auto draw = [list, at = std::size_t{0}]() mutable -> std::optional<Value> {
    return at < list.sequence()->items.size() ? std::optional(list.sequence()->items[at++]) : std::nullopt;
  };
  return runtime.object<Iterator>(draw, depth_above(list.depth()), type);
}

Value make_iterator(Runtime& runtime, const Value& over, Iterator::Source source) {
  return runtime.object<Iterator>(std::move(source), depth_above(over.depth()), "generator");
}

Value Namespace::make(Runtime& runtime, Dict attributes) {
  runtime.budget().take(attributes.size() * sizeof(Dict::Entry));  // it stays to the end
  auto made = std::make_shared<Namespace>();
  made->attributes_ = std::move(attributes);
  runtime.keep(made);
  return Value(std::shared_ptr<Object>(std::move(made)));
}

void Namespace::set(Runtime& runtime, std::string_view name, Value value) {
  const std::size_t before = attributes_.size();
  attributes_.set(&runtime.budget(), runtime.string(name), std::move(value));
  runtime.budget().take((attributes_.size() - before) * sizeof(Dict::Entry));
}

void Namespace::show(Builder& out) const {
  out.append("<Namespace {");
  bool first = true;
  for (const auto& [key, value] : attributes_.entries()) {
    if (!first) out.append(", ");
    first = false;
    append_repr(out, key);
    out.append(": ");
    append_repr(out, value);
  }
  out.append("}>");
}

std::optional<Value> Namespace::attribute(Runtime&, std::string_view name) {
  const Value* found = attributes_.find(name);
  return found != nullptr ? std::optional(*found) : std::nullopt;
}

void BoundMethod::show(Builder& out) const {
  out.append(fmt::format("<built-in method {} of {} object>", name_, self_.type()));
}

}  // namespace inlay::jinja
