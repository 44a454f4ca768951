#include <algorithm>

#include "jinja/objects.h"
#include "jinja/operators.h"

// The functions that every template knows: Jinja's, and the two that Hugging Face adds.
namespace inlay::jinja {
namespace {

Value range(Runtime& runtime, const Arguments& arguments) {
  const Parameters parameters("range", arguments, {"start", "stop", "step"}, 1);
  const bool only_stop = !parameters.given(1);
  const Integer start = only_stop ? 0 : parameters.integer(0), stop = parameters.integer(only_stop ? 0 : 1);
  return runtime.object<Range>(start, stop, parameters.integer(2, 1));
}

// dict(mapping or pairs, name=value ...)
Dict make_entries(Runtime& runtime, const Arguments& arguments) {
  if (arguments.positional.size() > 1) fail("dict expected at most 1 argument, got {}", arguments.positional.size());
  Dict dict;
  Budget* budget = &runtime.budget();
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.dict() != nullptr) {
      for (const auto& [key, value] : source.dict()->entries()) dict.set(budget, key, value);
    } else {
      Cursor cursor(runtime, source);
      while (const auto pair = cursor.next()) {
        std::vector<Value> both = items_of(runtime, *pair);
        if (both.size() != 2) fail("dictionary update sequence element has length {}; 2 is required", both.size());
        dict.set(budget, std::move(both[0]), std::move(both[1]));
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict.set(budget, runtime.string(name), value);
  return dict;
}

Value dict(Runtime& runtime, const Arguments& arguments) { return runtime.dict(make_entries(runtime, arguments)); }

Value make_namespace(Runtime& runtime, const Arguments& arguments) {
  return Namespace::make(runtime, make_entries(runtime, arguments));
}

// joiner(", "): empty when it is called first, and the separator from then on.
class Joiner final : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  std::string_view type() const override { return "jinja2.utils.Joiner"; }
  int depth() const override { return separator_.depth() + 1; }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const Arguments&) override {
    if (std::exchange(used_, true)) return separator_;
    return runtime.string("");
  }

 private:
  Value separator_;
  bool used_ = false;
};

Value joiner(Runtime& runtime, const Arguments& arguments) {
  const Parameters parameters("joiner", arguments, {"sep"}, 0);
  return runtime.object<Joiner>(parameters.given(0) ? parameters[0] : runtime.string(", "));
}

Value raise_exception(Runtime& runtime, const Arguments& arguments) {
  const Parameters parameters("raise_exception", arguments, {"message"}, 1);
  fail("{}", runtime.text_of(parameters[0]).string()->text);
}

// The time without a time zone, in English. Each directive goes to strftime alone, as what stands between could be
// anything: widths, which strftime pads without a bound, are no directives.
Value strftime_now(Runtime& runtime, const Arguments& arguments) {
  const Parameters parameters("strftime_now", arguments, {"format"}, 1);
  const std::string_view format = parameters.text(0), known = "aAbBcCdDeFgGhHIjklmMnprRStTuUVwWxXyY%";
  Builder out(runtime.budget());
  for (std::size_t at = 0; at < format.size();) {
    const std::size_t percent = std::min(format.find('%', at), format.size());
    out.append(format.substr(at, percent - at));
    if (percent == format.size()) break;
    std::size_t end = percent + 1;
    if (end < format.size() && (format[end] == '-' || format[end] == '_' || format[end] == '0')) ++end;
    const char letter = end < format.size() ? format[end] : '\0';
    at = std::min(end + 1, format.size());
    const std::string directive(format.substr(percent, at - percent));
    if (letter == 'f') {
      out.append("000000");
    } else if (letter == 'z' || letter == 'Z') {
      continue;
    } else if (known.find(letter) == known.npos || letter == '\0') {
      out.append(directive);
    } else {
      char buffer[128];
      out.append({buffer, std::strftime(buffer, sizeof buffer, directive.c_str(), &runtime.now())});
    }
  }
  return out.finish();
}

struct NamedFunction {
  std::string_view name;
  Function function;
};
constexpr NamedFunction functions[] = {
    {"dict", dict},
    {"joiner", joiner},
    {"namespace", make_namespace},
    {"raise_exception", raise_exception},
    {"range", range},
    {"strftime_now", strftime_now},
};

}  // namespace

Function find_function(std::string_view name) {
  const auto found = std::ranges::lower_bound(functions, name, {}, &NamedFunction::name);
  return found != std::end(functions) && found->name == name ? found->function : nullptr;
}

}  // namespace inlay::jinja
