#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "jinja/chat_template.h"
#include "support/files.h"

// Templates come with models: they must not be able to hang, crash or eat the machine.
namespace inlay::jinja {
namespace {

using inlay::testing::user_error_of;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::string repeated(std::string_view text, std::size_t times) {
  std::string result;
  for (std::size_t i = 0; i < times; ++i) result += text;
  return result;
}

std::string error_of(const std::string& text, std::string_view messages = "[]") {
  RenderOptions options;
  options.limits.steps = 5'000'000;
  options.limits.bytes = std::size_t{32} << 20;
  return user_error_of([&] { ChatTemplate("hostile", text).render(from(io::read_value(messages, "test")), options); });
}

const auto steps = HasSubstr("takes more than 5000000 steps");
const auto memory = HasSubstr("takes more than 32 MiB of memory");

TEST(JinjaHostileTemplate, TooManyStepsEnd) {
  EXPECT_THAT(error_of("{% for i in range(10**9) %}{% endfor %}"), HasSubstr("Range too big"));
  EXPECT_THAT(error_of("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"), steps);
  EXPECT_THAT(error_of("{% for i in range(99999) %}{{ range(99999)|list|length }}{% endfor %}"), steps);
  EXPECT_THAT(error_of("{% for i in range(99999) %}{{ range(99999)|sum }}{% endfor %}"), steps);
  EXPECT_THAT(error_of("{% for i in range(99999) %}{{ 5 in range(99999)|list }}{{ (range(99999)|list)[::-1]|sort|first "
                       "}}{% endfor %}"),
              steps);
  EXPECT_THAT(error_of("{% set s = 'ab' * 1000000 %}{% for i in range(99999) %}{{ s.upper()|length }}{% endfor %}"),
              steps);
  EXPECT_THAT(error_of("{% set s = 'é' * 1000000 %}{% for i in range(99999) %}{{ s[999999] }}{% endfor %}"), steps);
  EXPECT_THAT(error_of("{% set s = 'é' * 1000000 %}{% for i in range(99999) %}{{ s[500000:500001] }}{% endfor %}"),
              steps);
  EXPECT_THAT(error_of("{% set s = ' ' * 1000000 %}{% for i in range(99999) %}{{ s.strip() }}{% endfor %}"), steps);
  EXPECT_THAT(error_of("{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{{ s == s ~ '' }}{% endfor %}"), steps);
  EXPECT_THAT(error_of("{% set s = 'x' * 1000000 %}{% for i in range(99999) %}{{ s.strip(s) }}{% endfor %}"), steps);
  EXPECT_THAT(error_of("{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{{ s.count('aaaa') }}{% endfor %}"),
              steps);
  // Searching is not quadratic, and where it is, it is counted.
  EXPECT_THAT(error_of("{% set a = 'a' * 500000 %}{{ (a + 'b') in (a * 8) }}"), "<no error>");
  EXPECT_THAT(error_of("{% set a = 'a' * 500000 %}{{ (a * 8).rfind('a' ~ 'b' ~ a) }}"), AnyOf(steps, memory));
  EXPECT_THAT(error_of("{% set a = 'a' * 100000 %}{{ (a * 8).rsplit(a ~ 'b') }}"), AnyOf(steps, memory));
  EXPECT_THAT(error_of("{% set a = 'Σ' * 100000 %}{{ a.lower()|length }}"), "<no error>");
}

TEST(JinjaHostileTemplate, TooMuchMemoryEnds) {
  EXPECT_THAT(error_of("{{ 'a' * 10**9 }}"), memory);
  EXPECT_THAT(error_of("{{ 'a' * 10**30 }}"), memory);
  EXPECT_THAT(error_of("{{ [1] * 10**12 }}"), memory);
  EXPECT_THAT(error_of("{{ (1, 2) * 10**18 }}"), memory);
  EXPECT_THAT(error_of("{{ ('a' * 1000000).replace('a', 'b' * 1000000)|length }}"), AnyOf(memory, steps));
  EXPECT_THAT(error_of("{{ ('a' * 1000000).replace('', 'b' * 1000)|length }}"), AnyOf(memory, steps));
  EXPECT_THAT(error_of("{{ (['a' * 1000000] * 100)|join }}"), memory);
  EXPECT_THAT(error_of("{{ ('a' * 1000000)|list|length }}"), memory);
  EXPECT_THAT(error_of("{{ ('a,' * 1000000).split(',')|length }}"), memory);
  EXPECT_THAT(error_of("{{ ('a\n' * 100000)|indent(999999)|length }}"), memory);
  EXPECT_THAT(error_of("{% for i in range(50000) %}{{ 'a' * 1000 }}{% endfor %}"), memory);
  EXPECT_THAT(error_of("{% set x %}{% for i in range(50000) %}{{ 'a' * 1000 }}{% endfor %}{% endset %}"), memory);
  EXPECT_THAT(error_of("{{ strftime_now('%Y' * 10000000) }}"), AnyOf(memory, steps));
  EXPECT_THAT(error_of("{{ [1, 2]|tojson(indent=10**9)|length }}"), "<no error>");  // at most a thousand
  EXPECT_THAT(error_of("{{ ([1] * 100000)|tojson(indent=' ' * 100000)|length }}"), AnyOf(memory, steps));
  EXPECT_THAT(error_of("{{ 10**10**10 }}"), HasSubstr("128 bits"));
  EXPECT_THAT(error_of("{{ 2**127 }}"), HasSubstr("128 bits"));
}

TEST(JinjaHostileTemplate, DoublingEnds) {
  const std::string head = "{% set ns = namespace(x='a') %}{% for i in range(100) %}",
                    tail = "{% endfor %}{{ ns.x|length }}";
  EXPECT_THAT(error_of(head + "{% set ns.x = ns.x + ns.x %}" + tail), memory);
  EXPECT_THAT(error_of(head + "{% set ns.x = ns.x ~ ns.x %}" + tail), memory);
  EXPECT_THAT(error_of(head + "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}" + tail), memory);
  EXPECT_THAT(error_of(head + "{% set ns.x = ns.x|replace('a', 'aa') %}" + tail), AnyOf(memory, steps));
  EXPECT_THAT(error_of(head + "{% set ns.x = ns.x|tojson|tojson %}" + tail), AnyOf(memory, steps));
  const std::string lists = "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}";
  EXPECT_THAT(error_of(lists + "{% set ns.x = ns.x + ns.x %}" + tail), AnyOf(memory, steps));
  // Small values that stand for large ones: all that walks over them counts.
  const std::string tree =
      "{% set ns = namespace(x=(1,)) %}{% for i in range(100) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}";
  EXPECT_THAT(error_of(tree + "{{ ns.x }}"), AnyOf(memory, steps));
  EXPECT_THAT(error_of(tree + "{{ ns.x|tojson }}"), AnyOf(memory, steps));
  EXPECT_THAT(error_of(tree + "{{ ns.x == (ns.x[0], ns.x[1]) }}"), steps);
  EXPECT_THAT(error_of(tree + "{{ {ns.x: 1} }}"), steps);
  EXPECT_THAT(error_of(tree + "{{ ns.x < (ns.x[0], ns.x[1]) }}"), steps);
  EXPECT_THAT(error_of(tree + "{{ [ns.x, 1]|unique|list }}"), steps);
}

TEST(JinjaHostileTemplate, NestingEnds) {
  const auto deep = AnyOf(HasSubstr("nested"), HasSubstr("nests"));
  EXPECT_THAT(error_of("{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}"), deep);
  EXPECT_THAT(error_of("{{ " + repeated("[", 100000)), deep);
  EXPECT_THAT(error_of("{{ " + repeated("{1:", 100000)), deep);
  EXPECT_THAT(error_of("{{ " + repeated("not ", 100000) + "1 }}"), deep);
  EXPECT_THAT(error_of("{{ " + repeated("-", 100000) + "1 }}"), deep);
  EXPECT_THAT(error_of("{{ 1" + repeated(" + 1", 100000) + " }}"), deep);
  EXPECT_THAT(error_of("{{ x" + repeated(".x", 100000) + " }}"), deep);
  EXPECT_THAT(error_of("{{ x" + repeated("[0]", 100000) + " }}"), deep);
  EXPECT_THAT(error_of("{{ x" + repeated("()", 100000) + " }}"), deep);
  EXPECT_THAT(error_of("{{ x" + repeated("|upper", 50000) + " }}"), deep);
  EXPECT_THAT(error_of("{{ x" + repeated(" is x", 50000) + " }}"), HasSubstr("chain"));
  EXPECT_THAT(error_of("{{ 1" + repeated(" if 1 else 1", 40000) + " }}"), deep);
  EXPECT_THAT(error_of("{{ 1" + repeated(" and 1", 50000) + " }}"), deep);
  EXPECT_THAT(error_of("{{ f(" + repeated("f(", 100000)), deep);
  EXPECT_THAT(error_of(repeated("{% if 1 %}", 40000)), deep);
  EXPECT_THAT(error_of(repeated("{% for i in x %}", 30000)), deep);
  EXPECT_THAT(error_of(repeated("{% macro m() %}", 30000)), deep);
  EXPECT_THAT(error_of("{% set " + repeated("(", 100000) + "a"), deep);
  EXPECT_THAT(error_of("{% if 1 %}" + repeated("{% elif 1 %}", 30000) + "{% endif %}"), "<no error>");
  EXPECT_THAT(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), deep);
  EXPECT_THAT(error_of("{% macro m(a=m()) %}{% endmacro %}{{ m() }}"), deep);
  EXPECT_THAT(error_of("{% macro a() %}{{ b(caller) }}{% endmacro %}{% macro b(c) %}{% call a() %}{% endcall %}{% "
                       "endmacro %}{{ a() }}"),
              deep);
  EXPECT_THAT(error_of("{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall "
                       "%}{% endmacro %}{{ n() }}"),
              deep);
  // Values that are built deeper and deeper.
  const auto build = [](const std::string& step) {
    return "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = " + step +
           " %}{% endfor %}{{ ns.x }}";
  };
  EXPECT_THAT(error_of(build("[ns.x]")), deep);
  EXPECT_THAT(error_of(build("(ns.x,)")), deep);
  EXPECT_THAT(error_of(build("{1: ns.x}")), deep);
  EXPECT_THAT(error_of(build("[ns.x]|map('list')")), deep);
  EXPECT_THAT(error_of(build("dict(a=ns.x).items()")), deep);
  EXPECT_THAT(error_of(build("[ns.x].count")), deep);
  EXPECT_THAT(error_of(build("joiner(ns.x)")), AnyOf(deep, HasSubstr("<no error>")));
}

// What holds itself, or hangs together in a long chain, goes at the end all the same (and the leak checker is content).
TEST(JinjaHostileTemplate, CyclesAndChainsAreTakenDown) {
  const auto fine = ::testing::Eq("<no error>");
  EXPECT_THAT(error_of("{% set ns = namespace() %}{% set ns.x = ns %}{% set ns.y = [ns, {'a': ns}] %}"), fine);
  EXPECT_THAT(error_of("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"), HasSubstr("nests more than"));
  EXPECT_THAT(error_of("{% for i in [1] %}{{ loop.changed(loop) }}{% endfor %}"), fine);
  EXPECT_THAT(error_of("{% set ns = namespace() %}{% for i in [1] %}{% set ns.l = loop %}{% endfor %}{{ ns.l.index "
                       "}}{{ ns.l.last }}"),
              fine);
  EXPECT_THAT(error_of("{% set ns = namespace(h=namespace()) %}{% set ns.c = ns.h %}{% for i in range(20000) %}"
                       "{% set n = namespace() %}{% set o = ns.c %}{% set o.next = n %}{% set ns.c = n %}{% endfor %}"),
              fine);
  EXPECT_THAT(
      error_of("{% set ns = namespace(p=none) %}{% for i in range(20000) %}{% for j in [1] %}"
               "{% if ns.p %}{% set x = ns.p.changed(loop) %}{% endif %}{% set ns.p = loop %}{% endfor %}{% endfor %}"),
      fine);
  EXPECT_THAT(error_of("{% macro m() %}{{ m is defined }}{% endmacro %}{% set x = [m, m] %}{{ m() }}"), fine);
  EXPECT_THAT(error_of("{% for i in range(1000) %}{% macro m() %}{{ i }}{% endmacro %}{% set f = m %}{% endfor %}"),
              fine);
  EXPECT_THAT(
      error_of("{% set ns = namespace() %}{% macro m() %}{% endmacro %}{% set ns.m = m %}{% set ns.u = ns.m %}"), fine);
  EXPECT_THAT(
      error_of(
          "{% set ns = namespace(g=[1]) %}{% for i in range(20000) %}{% set ns.g = ns.g|map('string') %}{% endfor %}"),
      HasSubstr("nested more than"));
  EXPECT_THAT(error_of("{% set g = [1, 2]|select %}{% for x in g %}{{ g|list }}{{ loop.last }}{% endfor %}"), fine);
}

TEST(JinjaHostileTemplate, LargeTemplatesAreRefusedAndLongOnesAreRead) {
  EXPECT_THAT(error_of(std::string(std::size_t{1} << 20, 'x')), HasSubstr("a template of 1048576 bytes"));
  EXPECT_THAT(error_of(repeated("{{ 1 }}{% if x %}y{% endif %}{# z #}", 10000)), "<no error>");
  EXPECT_THAT(error_of(repeated("{", 100000)), HasSubstr("hostile:1:"));
  EXPECT_THAT(error_of("{{ [" + repeated("1,", 100000) + "]|length }}"), "<no error>");
}

// The default limits leave room for what real data has.
TEST(JinjaHostileTemplate, LongConversationsFit) {
  std::string messages = "[";
  for (int i = 0; i < 1000; ++i) {
    messages += fmt::format("{}{{\"role\": \"{}\", \"content\": \"{}\"}}", i > 0 ? "," : "",
                            i % 2 == 0 ? "user" : "assistant", std::string(10000, 'x'));
  }
  messages += "]";
  const ChatTemplate chat(
      "t",
      "{% set ns = namespace(t='') %}{% for m in messages %}{% for later in messages[loop.index:] %}"
      "{% if later.role == 'none' %}x{% endif %}{% endfor %}"
      "{{ '<' + m.role + '>' + m.content.strip() + '\n' }}{% endfor %}");
  EXPECT_GT(chat.render(from(io::read_value(messages, "test"))).text.size(), 10'000'000u);
}

}  // namespace
}  // namespace inlay::jinja
