"""Makes tests/golden/jinja_cases.json: small templates, and what Jinja2 makes of them as transformers runs it.

    pip install jinja2 transformers                  # made with Jinja2 3.1.6, transformers 5.17
    python tests/golden/make_jinja_cases.py          # rewrites jinja_cases.json, the same bytes every time

The file holds "variables", which every template sees, and "cases" by group: [template, text], or [template, null, kind
of the error, its message]. Templates with {% generation %} have a third entry in place of these: the characters, begin
and end, that their blocks wrote. The time is fixed at 2026-11-15 12:00:00.
"""

import datetime
import json
import pathlib

from transformers.utils import chat_template_utils

NOW = datetime.datetime(2026, 11, 15, 12, 0, 0)

VARIABLES = {
    "s": "Hello World", "u": "Grüße, ΟΔΟΣ 中文😀", "lines": "one\ntwo\n\n  three\r\nfour", "blank": "  \t pad \n ",
    "empty": "", "html": "<b>\"fox\" & 'hen'</b>", "n": 7, "z": 0, "neg": -3, "big": 18446744073709551615, "f": 2.5,
    "yes": True, "no": False, "nil": None, "nums": [3, 1, 2, 10], "words": ["banana", "Apple", "cherry", "apple"],
    "d": {"b": 2, "a": 1, "C": [1, "x"], "items": 5}, "mixed": [1, "two", None, True, 2.0, {"k": "v"}, [1]],
    "users": [{"name": "Ann", "age": 31, "city": "Rome", "on": True, "pet": {"kind": "cat"}},
              {"name": "bob", "age": 25, "city": "rome", "on": False, "pet": {"kind": "dog"}},
              {"name": "Cid", "age": 31, "city": "Oslo", "on": True}],
    "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"},
                 {"role": "assistant", "content": "Hello!", "tool_calls": [{"function": {"name": "f", "arguments":
                  {"x": 1, "y": "é\"\n</s>"}}}]}, {"role": "user", "content": [{"type": "text", "text": "part"}]}],
    "deep": {"a": {"b": {"c": [10, 20, {"d": "end"}]}}}, "chars": "a\u0000b\u007f\u2028\U0001f600'\"\\",
}

EXPRESSIONS = {
    "literals": r"""
        1 | 1_000 | 0x1F | 0b101 | 0o17 | 00 | 1.5 | 1e3 | 1.5e-7 | 1E+20 | 1_0.2_5 | 123456789012345678901234567890
        'a' | "b" | 'it''s' | "a" 'b' | '\n\t\\\'\"' | "\x41\u00e9\U0001f600\101" | '\q\é\中' | 'a\
b' | true | True | false | False | none | None | [] | [1, 'a', none] | [1,] | (1, 2) | (1,) | () | (1) | {}
        {'a': 1, "b": [2]} | {'a': 1, 'a': 2} | {1: 'x', 1.0: 'y', true: 'z'} | {'a': {'b': {}}} | 1, 2 | 1,
        {(1, 2): 3}[(1, 2)] | {[1]: 2} | 0.1 + 0.2 | 1e16 | 1e15 | 123456.789e3 | 0.0001 | 0.00001 | 1e400 | -1e400
        5e-324 | 1.7976931348623157e308 | 100000000000000000000.0 | 1e22 | -0.0 | "a\u2028b" | ['\x00\x7f\xa0é\u3000😀'] | ["it's", 'say "x"', 'both \' "']
    """,
    "arithmetic": r"""
        1 + 2 | 7 - 10 | 3 * 4 | 7 / 2 | 6 / 3 | 7 // 2 | -7 // 2 | 7 // -2 | -7 % 3 | 7 % -3 | 7.5 % 2 | -7.5 % 2
        7.5 // 2 | -7.5 // 2 | 2 ** 10 | 2 ** -1 | 2 ** 3 ** 2 | -2 ** 2 | 2 ** 0.5 | 4 ** 0.5 | 1 / 0 | 1 // 0 | 1 % 0
        1.0 / 0 | 1.0 // 0 | 1.0 % 0 | 0 ** -1 | 1 + 2 * 3 | (1 + 2) * 3 | 10 - 4 - 3 | 2 * 3 % 4 | 1 + 1.0 | true + 1
        -true | +n | -n | - -n | -f | +f | +yes | -'a' | +'a' | 1 + 'a' | 'a' + 1 | 'a' * 3 | 3 * 'ab' | 'a' * -1 | 'a' * 'b' | [1] * 2
        [1] + [2] | (1,) + (2,) | [1] + (2,) | [1] * 2.0 | 'a' - 'b' | none + 1 | {} + {} | 2 ** 64 | 2 ** 100 | big + 1 | 1 - big | n / z
        9007199254740993 + 0.0 | 7 // 0.0 | 1 + true * 2 | 'x' ~ 1 ~ none ~ 1.0 ~ [1] | 1 ~ 2 + 3 | 1 + 2 ~ 3 | 2 ~ 3 * 4 | nope ~ 'a' | -5 // 2 * 2
        5 % 3 ~ 'x' | 1.5 + 1 | 3.0 * 2 | 1e3 // 7 | 0.1 * 3 | 1 - 0.9 | 1/3 | 2/3 | 1e-5 * 1 | 10 ** 20 | 10.0 ** 20 | 1 if 1 + 1 == 2 else 0
    """,
    "comparisons": r"""
        1 == 1.0 | 1 == true | 0 == false | 'a' == 'a' | 'a' == 1 | none == none | none == false | [1, 2] == [1, 2.0] | (1,) == [1]
        {'a': 1} == {'a': 1.0} | {'a': 1, 'b': 2} == {'b': 2, 'a': 1} | 1 != 2 | 'a' != 'a' | 1 < 2 | 2 <= 2 | 'a' < 'b' | 'a' < 'B' | 'é' > 'z' | [1, 2] < [1, 3]
        [1] < [1, 0] | (2,) > (1, 9) | [1] <= [1] | 1 < 'a' | none < 1 | [1] < (1,) | {} < {} | 1 < 2 < 3 | 1 < 3 < 2 | 3 > 2 > 1 == 1 | 1 == 1 == true | 1 < 2 == 2
        1 in [1, 2] | 3 in [1, 2] | 'a' in 'abc' | '' in 'abc' | 'd' not in 'abc' | 1 in 'abc' | 'a' in d | 'zz' in d | 1 in d | [1] in [[1]] | [1] in d
        'role' in messages[0] | 'x' in none | 'x' in 5 | nope in [1] | 1 in nope | nope in 'abc' | 3 in range(5) | 2.0 in range(5) | 'a' in d.keys() | 1 in d.values()
        ('a', 1) in d.items() | not 1 in [1] | not 1 not in [1] | 1 in [1] in [true] | nope == nope | nope == none | nope != 1 | nope < 1 | 1 < nope | 1 <= true | none is none | range(3) == range(3)
        range(0) == range(5, 5) | 1 == 2 or 'x' | 0.1 + 0.2 == 0.3 | big == 18446744073709551615 | big > 9223372036854775807 | 'abc' == u | 'a' in ['A'|lower]
    """,
    "logic": r"""
        1 and 2 | 0 and 2 | '' or 'x' | 'y' or 'x' | none or 0 | not 1 | not not 1 | not '' | not [] | not {} | not () | not 0.0 | not nope | not none
        true and false or true | true or false and false | not true or true | (not true) and nope.x | false and nope.x | true or nope.x | nope and 1 | nope or 'd' | [] or {} or '' or 'last'
        'a' if true else 'b' | 'a' if false else 'b' | 'a' if false | ('a' if false) is defined | ('a' if false).x | 'a' if nope else 'b' | 1 if 0 else 2 if 0 else 3 | (1 if 1 else 2) if 0 else 3
        'a' if 1 else nope.x | 1 if not 0 else 2 | [1 if yes else 2, 3] | {'k': 1 if no else 2} | 'a' if yes and not no else 'b' | not yes == no | not (yes == no) | range(0) or 'empty' | d.items() and 1 | 'a' if 1 if 1 else 0
    """,
    "access": r"""
        d.a | d['a'] | d.zz | d['zz'] | d.items is callable | d['items'] | d.get('a') | d.get('zz') | d.get('zz', 'x') | d.get('items') | d.C[1] | d.C.1 | d['C'][-1] | deep.a.b.c[2].d | deep['a']['b'].c.2.d | deep.a.x.y
        deep.a.x | nums[0] | nums[-1] | nums[99] | nums[-99] | nums['a'] | nums[1.0] | nums[true] | nums.0 | nums.9 | s[0] | s[-1] | s[99] | u[0] | u[2] | u[-1] | s.nope | s['upper']() | 5.x | 5[0] | n.x | n[0]
        none.x | none['x'] | nope.x | nope['x'] | nope[0] | nope() | d() | s() | nil.x.y | messages[0].role | messages[0]['content'] | messages[-1].content[0].text | messages[2].tool_calls[0].function.arguments.x | (1, 2)[1] | [1, 2][0] | 'abc'[1]
        {'a': 1}.a | {'a': 1}['a'] | range(5)[1] | range(5)[-1] | range(5)[9] | d[none] | {none: 1}[none] | {1: 'one'}[1] | {1: 'one'}[true] | d[[1]] | d[1, 2] | yes.x | f.x | d.__class__ | s.__class__ | s.__class__.__mro__ | nums.append
        nums.append(1) | d.update({}) | d.pop('a') | nums.sort() | nums.clear is defined | d.keys is defined | d.get is callable | s._x | d.items() | d.keys() | d.values() | d.items()[0] | d.keys()|list | d.values()|list | d.copy().a | nums.count(1)
        nums.index(2) | nums.index(99) | nums.copy() | (1, 2, 1).count(1) | (1, 2).index(2) | messages.0.role | users[0].pet.kind | users[2].pet | users[2].pet.kind | users[0]['pet']['kind'] | d.a.b | d.a.b.c | mixed[5].k | mixed[6][0] | {}.a | {}.a.b | [].0 | ''[0] | loop | loop.index
    """,
    "slices": r"""
        nums[1:] | nums[:1] | nums[:] | nums[::2] | nums[::-1] | nums[-2:] | nums[:-1] | nums[1:3] | nums[3:1] | nums[3:0:-1] | nums[-1:-3:-1] | nums[100:] | nums[:100] | nums[-100:2] | nums[::-2] | nums[1::] | nums[::0] | nums['a':]
        s[1:] | s[:5] | s[::-1] | s[-5:] | s[2:8:2] | s[::3] | u[1:4] | u[::-1] | u[-2:] | u[:2] | u[2:4] | u[::2] | (1, 2, 3)[1:] | (1, 2, 3)[::-1] | range(10)[2:5] | range(10)[::3] | range(10)[::-1]|list | messages[1:]|length | nope[1:] | nil[1:] | d[1:] | n[1:] | ''[1:] | [][::-1]
        nums[none:2] | nums[n:] | nums[yes:] | 'abc'[1:2] | 'abc'[5:] | nums[:2][0] | nums[1:][1:] | nums[1.0:] | nums[nope:] | s[-3:-1] | s[10:0:-3] | range(10)[8:2:-2] | nums[::-1][0] | 'héllo wörld'[1:8:3] | nums[-1:] | messages[:-1][-1].role | nums[2:2] | nums[0:999999999999999999999]
    """,
    "string methods": r"""
        s.upper() | s.lower() | u.upper() | u.lower() | s.title() | "they're bill's".title() | s.capitalize() | 'ÉCOLE'.capitalize() | 'ßa'.capitalize() | 'ǆ'.title() | 'ΑΣ ΑΣΑ Σ'.lower() | 'ﬁn'.upper() | 'İ'.lower()
        blank.strip() | blank.lstrip() | blank.rstrip() | 'xxaxx'.strip('x') | 'xyaxy'.strip('yx') | 'xxa'.lstrip('x') | 'axx'.rstrip('x') | '\u3000a\xa0'.strip() | 'éaé'.strip('é') | 'a'.strip(none) | 'abc'.strip('') | s.strip(1)
        'a,b,,c'.split(',') | 'a,b,,c'.split(',', 1) | ' a  b '.split() | ' a  b c '.split(none, 1) | 'a b c'.split(' ') | ''.split() | ''.split(',') | 'aXXbXXc'.split('XX') | 'a,b,c'.rsplit(',', 1) | ' a b  c '.rsplit(none, 1) | 'a b'.rsplit() | 'aaa'.split('aa') | 'aaa'.rsplit('aa') | 'aaa'.rsplit('aa', 1)
        'a'.split('') | lines.splitlines() | lines.splitlines(true) | 'a\n'.splitlines() | ''.splitlines() | 'a\x0bb\x1cc\u2028d\x85e'.splitlines() | 'k=v=w'.partition('=') | 'kv'.partition('=') | 'k=v=w'.rpartition('=') | 'kv'.rpartition('=') | s.replace('o', '0') | s.replace('o', '0', 1) | s.replace('', '-') | s.replace('l', '') | 'aaa'.replace('aa', 'b') | ''.replace('', 'x') | 'ab'.replace('', 'x', 2)
        s.startswith('Hell') | s.startswith('x') | s.startswith(('x', 'H')) | s.startswith('World', 6) | s.endswith('ld') | s.endswith(('x', 'd')) | s.endswith('Hello', 0, 5) | s.startswith(1) | s.startswith(['H']) | s.startswith('') | s.startswith('', 99) | s.find('o') | s.find('zz') | s.find('o', 5) | s.rfind('o') | u.find('中') | u.rfind('') | s.index('W') | s.index('zz') | s.rindex('l') | s.count('l') | 'aaaa'.count('aa') | s.count('') | s.find('o', -4) | s.find('l', 3, 4)
        '-'.join(['a', 'b']) | '-'.join('abc') | ''.join([]) | '-'.join([1]) | ', '.join(d) | 'prefix-x'.removeprefix('prefix-') | 'x.txt'.removesuffix('.txt') | 'x'.removeprefix('y')
        'abc'.isalpha() | 'ab1'.isalpha() | ''.isalpha() | 'é中'.isalpha() | '12'.isdigit() | '²'.isdigit() | '½'.isdigit() | 'ab1'.isalnum() | 'a b'.isalnum() | ' \n'.isspace() | ''.isspace() | 'abc'.islower() | 'aBc'.islower() | '123'.islower() | 'a1'.islower() | 'ABC'.isupper() | 'A1'.isupper() | 'ǅ'.isupper()
        s.upper.x | 'abc'.upper().lower().title() | s.split()[0].lower() | s.lower(1) | s.split(sep='o') | s.split(maxsplit=1) | s.replace('o') | s.nope() | 'a'.join(nope) | s.find() | 'a-b_c'.split('-')[1].split('_') | '  a'.lstrip().split('\n')[-1] | 'x</think>y'.split('</think>')[-1].lstrip('\n') | 'x</think>y'.split('</think>')[0].rstrip('\n').split('<think>')[-1]
    """,
    "filters text": r"""
        s|upper | s|lower | u|lower | 'hello big-world (and) {x} [y]'|title | 'éa bC'|title | s|capitalize | 5|upper | none|upper | nope|upper | blank|trim | 'xax'|trim('x') | 5|trim | nope|trim | s|length | u|length | nums|length | d|length | ''|count | 5|length | none|length | nope|length | range(4)|length
        s|replace('o', '0') | s|replace('o', '0', 1) | 5|replace('5', 'x') | nope|replace('a', 'b') | s|replace('o') | 'a.b'|replace('.', none) | 'abc'|reverse | u|reverse | [1, 2]|reverse|list | nums|reverse|first | 5|reverse | d|reverse|list | lines|indent | lines|indent(2, true) | lines|indent('> ', blank=true) | 'a'|indent | ''|indent | 'a\nb'|indent(0) | 5|indent
        html|e | html|escape | html|e|e | html|safe | html|safe|e | ('<'|safe) + '<' | '<' + ('<'|safe) | ('<'|safe) ~ '<' | ['<'|e] | ('a'|safe)|upper + '<' | '&'|e|length
        s|string | 5|string | none|string | [1, 'a']|string | s|first | s|last | ''|first | s|list | u|list | s|join('-') | nope|string | s|default('x') | 'a'|upper|lower | s|upper() | s|nofilter | s|upper(1) | 'a,b'.split(',')|join('+') | -5|abs | (-5)|abs | -5.5|abs | 'x' ~ 5|string + 'y' | 'a'~'b'|upper
    """,
    "filters numbers": r"""
        '42'|int | ' 42 '|int | '4_2'|int | '_42'|int | '42.9'|int | 'x'|int | 'x'|int(7) | '0x1f'|int(base=16) | '1f'|int(base=16) | '101'|int(base=2) | '0b11'|int(0, 0) | 42.9|int | -42.9|int | true|int | none|int | none|int(3) | [1]|int | ''|int | '-7'|int | '+7'|int | '1e3'|int | 'inf'|int | nope|int | '12345678901234567890'|int
        '4.5'|float | '4'|float | 'x'|float | 'x'|float(1.5) | 3|float | true|float | none|float | ' 1e3 '|float | 'inf'|float | '-inf'|float | 'nan'|float | '1_0.5'|float | nope|float | [1]|float | '.5'|float | '5.'|float | 'infinity'|float | '1e400'|float
        42.55|round | 42.55|round(1) | 2.5|round | 3.5|round | -2.5|round | 42.55|round(1, 'floor') | 42.51|round(1, 'ceil') | 1234.567|round(-2) | 42|round | 42|round(1) | 42.5|round|int | 2.675|round(2) | 1.005|round(2) | 'x'|round | 42.5|round(0, 'up') | 15|round(-1) | 25|round(-1) | nope|round | 0.5|round | 1e20|round(2) | -0.4|round | 5|abs | nope|abs | 'a'|abs | none|abs | true|abs
    """,
    "filters sequences": r"""
        nums|first | nums|last | []|first | []|last | [][0]|default('x') | nums|list | d|list | range(3)|list | 5|list | none|list | nope|list | nums|join | nums|join(', ') | words|join(' ') | users|join(', ', 'name') | users|join(attribute='age', d=' ') | d|join(',') | nope|join(',') | 5|join(',') | mixed|join('/') | nums|join(1)
        nums|sum | users|sum('age') | users|sum(attribute='age', start=10) | []|sum | []|sum(start=5) | words|sum | [[1], [2]]|sum(start=[]) | [0.1]*3|sum | nums|min | nums|max | []|min | words|min | words|max | words|min(true) | users|max(attribute='age')|string | users|min(attribute='name') | mixed|max | nope|max
        nums|sort | nums|sort(true) | words|sort | words|sort(case_sensitive=true) | words|sort(reverse=true) | users|sort(attribute='age')|map(attribute='name')|list | users|sort(attribute='age,name')|map(attribute='name')|list | users|sort(attribute='pet.kind')|list | mixed|sort | d|sort | 'cab'|sort | [[2, 'b'], [1, 'c']]|sort(attribute=1) | nope|sort | 5|sort | [none]|sort | [(1, 'b'), (1, 'a')]|sort
        d|dictsort | d|dictsort(true) | {'a': 3, 'b': 1}|dictsort(false, 'value') | {'a': 3, 'b': 1}|dictsort(by='value', reverse=true) | d|dictsort(by='x') | nums|dictsort | nope|dictsort | d|items|list | nope|items|list | nums|items|list | {'x': 1}|items|first | words|unique|list | words|unique(true)|list | users|unique(attribute='city')|map(attribute='name')|list | nums|unique|length | [[1], [1]]|unique|list | [1, 1.0, true]|unique|list | nope|unique|list
        nums|map('string')|list | words|map('upper')|join(' ') | users|map(attribute='name')|list | users|map(attribute='pet.kind')|list | users|map(attribute='pet.kind', default='?')|list | users|map(attribute='zz')|list | words|map('replace', 'a', 'o')|list | nums|map('nofilter')|list | nums|map|list | nums|map(attr='x')|list | nope|map('upper')|list | []|map('upper')|list | 5|map('upper')|list | [[1, 2], [3]]|map('sum')|list | [[1, 2]]|map('map', 'string')|map('list')|list | 'abc'|map('upper')|list | {'k': 1}|map('upper')|list | nums|map('default', 1)|list
        nums|select('odd')|list | nums|select|list | [0, 1, '', 'a', none]|select|list | [0, 1]|reject|list | nums|reject('odd')|list | nums|select('gt', 2)|list | nums|select('in', [1, 2])|list | nums|select('divisibleby', 2)|list | words|select('equalto', 'Apple')|list | nums|select('nope')|list | users|selectattr('on')|map(attribute='name')|list | users|rejectattr('on')|map(attribute='name')|list | users|selectattr('age', 'equalto', 31)|list|length | users|selectattr('age', '>', 30)|map(attribute='name')|join | users|selectattr('pet', 'defined')|list|length | users|selectattr('pet.kind', '==', 'cat')|first | users|rejectattr('pet', 'defined')|map(attribute='name')|first | messages|selectattr('role', 'equalto', 'user')|list|last | messages|selectattr('role', 'in', ['system', 'user'])|list|length | messages|selectattr|list | nope|selectattr('x')|list | none|select|list | nums|select('sameas', 1)|list
        nope|default('x') | nope|default | none|default('x') | ''|default('x') | ''|default('x', true) | none|d('x', true) | 0|default(5, boolean=true) | nope.x|default('y') | d.zz|default('y') | d.zz.y|default('z') | nums|length > 3 | nums|select('odd')|length | (nums|select('odd')|list)|length | nums|reverse|length | nums|map('string') is iterable | nums|map('string') is sequence | nums|select('odd') is string | 5|first | {}|first | d|first | d.items()|first | d.items()|list|last | d.values()|sum | d.values()|list|string | nums|tojson|length
    """,
    "tojson": r"""
        nums|tojson | d|tojson | mixed|tojson | s|tojson | u|tojson | html|tojson | chars|tojson | none|tojson | true|tojson | 1.0|tojson | 1e20|tojson | 1e16|tojson | 0.1|tojson | big|tojson | []|tojson | {}|tojson | (1, 2)|tojson | [[], {}]|tojson(indent=2) | d|tojson(indent=2) | d|tojson(indent=0) | d|tojson(indent='\t') | d|tojson(indent=none) | d|tojson(indent=true)
        d|tojson(sort_keys=true) | d|tojson(separators=(',', ':')) | d|tojson(indent=2, separators=(', ', ' : ')) | u|tojson(ensure_ascii=true) | chars|tojson(ensure_ascii=true) | u|tojson(true) | {1: 'a', none: 2, true: 3, 1.5: 4}|tojson | {(1, 2): 3}|tojson | nope|tojson | d.items()|tojson | range(3)|tojson | nums|map('string')|tojson | d.get|tojson | messages[2].tool_calls|tojson | {'a': nope}|tojson | {'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true, indent=1) | ('<'|safe)|tojson | '1e400'|float|tojson | 'nan'|float|tojson | -0.0|tojson | namespace(a=1)|tojson | {'a': 1, 2: 'b'}|tojson(sort_keys=true)
    """,
    "tests": r"""
        n is defined | nope is defined | nope is undefined | n is not defined | d.zz is defined | nil is defined | nil is none | n is none | nope is none | s is string | n is string | html|safe is string | n is number | f is number | yes is number | '1' is number | n is integer | f is integer | yes is integer | f is float | n is float | yes is boolean | 1 is boolean | yes is true | 1 is true | no is false | d is mapping | nums is mapping
        nums is iterable | s is iterable | n is iterable | nil is iterable | nope is iterable | d is iterable | nums is sequence | s is sequence | d is sequence | n is sequence | nope is sequence | range(2) is sequence | d.items() is sequence | d.items() is iterable | (1,) is sequence | 3 is odd | 3 is even | 4 is even | 9 is divisibleby 3 | 9 is divisibleby(4) | 'a' is odd | nope is odd | 1.5 is odd | 'abc' is lower | 'ABC' is upper | 5 is lower | range is callable | n is callable | nope is callable | s.upper is callable
        1 is eq 1 | 1 is equalto(2) | 1 is ne 2 | 2 is gt 1 | 2 is ge 2 | 1 is lt 2 | 1 is le 0 | 2 is greaterthan 1 | 1 is lessthan 2 | 'a' is in 'abc' | 5 is in [1] | 1 is not in [1] | n is sameas n | none is sameas none | nums is sameas nums | [1] is sameas [1] | 1 is sameas true | n is notest | n is defined is true | n is defined and s is string | not n is defined | n is not none and n > 3 | n is divisibleby 7 and yes | (n is odd) == true | 'x' if n is odd else 'y' | n is odd or nope.x | [n is odd, n is even]
        messages is sequence and messages is not string | messages[3].content is string | messages[3].content is sequence | messages[0].tool_calls is defined | 'a' is eq('a') | 'a' is eq | 1 is eq 1.0 | d is eq {} | nums is eq nums[:] | 2 is in(nums) | 2 is in nums | 5 is ge(5) | nope is eq nope | none is not none | n is number and n is not float | '' is none | nope is not defined
    """,
    "functions": r"""
        range(5) | range(1, 4)|list | range(10, 0, -3)|list | range(0) | range(0, 10, 2) | range(100000)|length | range(100001) | range(1, 2, 0) | range() | range('a') | range(2.0) | range(-3)|list | range(1000000000000) | dict(a=1, b=2) | dict([('a', 1)], b=2) | dict({'x': 1}) | dict([1]) | dict() | namespace(a=1).a | namespace(a=1) | namespace({'k': 2}).k | namespace().x | namespace().x.y | namespace(a=1)['a'] | raise_exception('boom') | raise_exception('line\ntwo') | raise_exception()
        raise_exception(nope) | raise_exception(5) | strftime_now('%Y-%m-%d') | strftime_now('%d %b %Y') | strftime_now('%A, %B %d, %Y %H:%M:%S') | strftime_now('%j %U %w %y %I %p %%') | strftime_now('x%fy%z') | strftime_now('%-d %-m') | strftime_now('') | strftime_now('%e|%C|%F|%T') | strftime_now() | strftime_now(5) | strftime_now('é %Y') | joiner() is callable | joiner('x')() | range(3) ~ '' | dict(**{'a': 1}) | range(*[1, 4])|list | dict(a=1, **{'b': 2}) | range(*5) | dict(**5) | dict(a=1, **{'a': 2})
    """,
    "undefined": r"""
        nope | nope.x | nope + 1 | 1 + nope | -nope | +nope | nope * 2 | nope / 2 | nope % 2 | nope ** 2 | nope < 1 | nope ~ nope | nope|length | nope|list | nope() | nope.x() | nope['a'] | nope == 1 | nope != nope | nope and 1 | nope is none | [nope] | [nope]|string | {'a': nope} | 'a' if nope | nope|int | nope|first | nope|last | (nope|first).x | d.zz.a | d['zz']['a'] | nums[99].a | nums[99] + 1 | d[1.5].a | none.x.y | s.zz.a | 5.x.a | f.zz + 1 | users[2].pet.kind | messages[0].tool_calls[0] | s[99].x | yes.x.y | range(2)[5].x | namespace(a=1).b.c | (1, 2)[7].x | 'a' + nope | 'a' + d.zz | nope in nope | nope|tojson | s.nope() | d.nope() | {}['a'].b | nope|join | nope|e | nope|safe | nope|upper|lower | d['a b'].c | d["it's"].c
    """,
}

TEMPLATES = {
    "white space": [
        "a {{ 1 }} b", "a {{- 1 -}} b", "a\n{{- 1 }}\nb", "{{ 1 }}\n", "{{ 1 }}\n\n", "\n{{ 1 }}", "a\n  {% if true %}\n  b\n  {% endif %}\nc", "a\n  {%- if true %}\n  b\n  {%- endif %}\nc",
        "a\n  {% if true -%}\n  b\n  {% endif -%}\nc", "a {% if true %} b {% endif %} c", "{% if true %}\n\nx\n\n{% endif %}\n\ny", "  {% set x = 1 %}  {{ x }}", "  {%+ set x = 1 %}y", "{% set x = 1 +%}\ny", "a\n\t {% set x = 1 %}\nb",
        "x {# c #} y", "x {#- c -#} y", "a\n  {# c #}\nb", "a\n  {#+ c #}\nb", "a\n{# c +#}\nb", "{#- a #}{#- b -#}\n\n c", "{# multi\nline #}x", "{#-#}x", "{# - #}x", "a{#\n{{ nope.x }}\n#}b", "{% raw %}{{ x }}{% endraw %}", "a\n {% raw %}\n{{ x }}\n {% endraw %}\nb",
        "a {%- raw -%} {{ x }} {%- endraw -%} b", "{% raw %}{% if %}{# #}{% endraw %}", "a\n  {{ 1 }}\n  b", "\r\na\r\n{% if true %}\r\nb\r\n{% endif %}\r\n", "a\r{{ 1 }}\rb", "{{ 'a\r\nb' }}", "{{ '\u00a0' }}\u00a0{{- 1 -}}\u00a0x", "{% for i in [1, 2] %}\n{{ i }}\n{% endfor %}\n",
        "{% for i in [1, 2] -%}\n{{ i }}\n{%- endfor %}\n", "{%- for i in [1, 2] %}\n  {{- i }}\n{%- endfor %}", "a  {%- if 1 %}  b  {%- endif %}  c", "{{ 1 -}}\n\n  {{- 2 }}", "{{ 1 }}\n{{ 2 }}", "{{ 1 -}} \n {% if 1 %} \n x {% endif %}", "{% if 1 %}{% if 1 %}\na\n{% endif %}\n{% endif %}\n",
        "  {{ 1 }}", "\t{%if 1%}x{%endif%}", "{%if 1%}\nx{%endif%}y", "{{1}}{{2}}", "{{-1}}", "{{+1}}", "{{ - 1 }}", "{{ 1-1 }}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {}}}}", "{ { {% } }", "{", "{{ '}}' }}", "{{ '%}' }}", "{% set x = '%}' %}{{ x }}", "a{% if 1 %}\n{% endif %}b", "{%- set a = 1 -%}\n\n{%- set b = 2 -%}\n\n{{ a }}{{ b }}",
        "\n\n  {%- if 1 -%}\n\n x \n\n  {%- endif -%}  \n\n", "line\n    {# note #}  {% if 1 %}x{% endif %}", "    {% if 1 %}    {% endif %}|", "a\n{% if 1 %}  \n  b{% endif %}", "", "\n", "\n\n", " ", "x\n", "{{ lines }}", "{% set x = 1 %}\n\n{{ x }}", "a \u2003{%- if 1 %}b{% endif %}", "a\x0b{%- if 1 %}b{% endif %}", "{{ 1\n+\n2 }}", "{%\nif\n1\n%}x{%\nendif\n%}",
        "  {{- 1 }}", "{% if 1 %} {%- endif %}|", "{% if 1 -%} {% endif %}|", "a\n   {%- endraw %}", "{{ 1 }}{# x #}\n{{ 2 }}", "{{ 1 }} {# x -#}\n {{ 2 }}", "a\n  {% raw %} b {% endraw %}\nc", "{%- raw %} b {%- endraw %}\nc", "a {%+ raw %} b {%+ endraw +%}\nc",
    ],
    "for": [
        "{% for i in nums %}{{ i }},{% endfor %}", "{% for i in [] %}x{% else %}none{% endfor %}", "{% for i in nope %}x{% else %}none{% endfor %}", "{% for i in none %}x{% endfor %}", "{% for i in 5 %}x{% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}", "{% for k in d %}{{ k }} {% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}",
        "{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}", "{% for a, b in [[1, 2], (3, 4)] %}{{ a + b }},{% endfor %}", "{% for a, b in [[1]] %}x{% endfor %}", "{% for a, b in [[1, 2, 3]] %}x{% endfor %}", "{% for a, b in [1] %}x{% endfor %}", "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for (a, b) in [[1, 2]] %}{{ a }}{{ b }}{% endfor %}",
        "{% for i in nums %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}", "{% for i in nums if i > 1 %}{{ i }}{{ loop.index }}{{ loop.last }}{{ loop.length }} {% endfor %}", "{% for i in nums if i > 99 %}x{% else %}none{% endfor %}", "{% for i in nums|select('odd') %}{{ i }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }} {% endfor %}",
        "{% for i in nums %}{{ loop.previtem }}<{{ i }}<{{ loop.nextitem }} {% endfor %}", "{% for i in nums %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}", "{% for i in nums %}{{ loop.cycle('a', 'b', 'c') }}{% endfor %}", "{% for i in nums %}{{ loop.cycle() }}{% endfor %}", "{% for i in [1, 1, 2, 2, 1] %}{{ loop.changed(i) }} {% endfor %}", "{% for i in nums %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}", "{% for i in nums %}{{ loop.nope }}{% endfor %}", "{% for i in nums %}{{ loop.nope.x }}{% endfor %}",
        "{% for i in [1, 2] %}{% for j in [3, 4] %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{{ loop.index }};{% endfor %}", "{% for i in [1, 2] %}{% set outer = loop %}{% for j in [3, 4] %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}", "{% for i in nums %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "{% for i in nums %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% for i in [1] %}{% continue %}{% else %}E{% endfor %}", "{% for i in [1] %}{% break %}{% else %}E{% endfor %}", "{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{% else %}E{% endfor %}",
        "{% for i in [1, 2] %}{% for j in [1, 2] %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}", "{% break %}", "{% for i in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", "{% for i in nums %}{% set x = i %}{% endfor %}{{ x }}", "{% set x = 0 %}{% for i in nums %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", "{% set ns = namespace(x=0) %}{% for i in nums %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% for i in nums %}{{ x }}{% set x = i %}{{ x }} {% endfor %}",
        "{% for i in range(3) %}{% if loop.last %}{{ loop.revindex0 }}{% endif %}{% endfor %}", "{% for loop in nums %}{% endfor %}", "{% for i in nums %}{% set loop = 1 %}{% endfor %}", "{% for x in nums[1:] %}{{ x }}{% endfor %}", "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}", "{% for x in (1, 2) + (3,) %}{{ x }}{% endfor %}", "{% for x in nums if x is odd %}{{ x }}{% endfor %}", "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{% endfor %}",
        "{% for x in nums|reverse %}{{ x }}{% endfor %}", "{% set g = nums|select('odd') %}{% for x in g %}{{ x }}{% endfor %}|{% for x in g %}{{ x }}{% endfor %}", "{% set it = nums|map('string') %}{{ it|first }}{{ it|list }}", "{% set ns = namespace(go=true) %}{% for i in range(5) if ns.go %}{{ i }}{% if i == 2 %}{% set ns.go = false %}{% endif %}{% endfor %}", "{% set ns = namespace(go=true) %}{% for i in range(5) if ns.go %}{{ i }}{{ loop.last }}{% if i == 2 %}{% set ns.go = false %}{% endif %}{% endfor %}",
        "{% for i in nums %}{% if loop.first %}[{% endif %}{{ i }}{% if not loop.last %}, {% else %}]{% endif %}{% endfor %}", "{% for i in range(2) %}{{ i }}{% endfor %}{{ i }}", "{% set i = 'o' %}{% for i in range(2) %}{{ i }}{% endfor %}{{ i }}", "{% for i in range(3) %}{{ loop.length }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}", "{% for a in [[1, 2], [3]] %}{% for b in a %}{{ b }}{% else %}-{% endfor %}{% endfor %}", "{% for i in nums %}{{ i }}", "{% for i nums %}{% endfor %}", "{% for in nums %}{% endfor %}", "{% for 1 in nums %}{% endfor %}", "{% for a.b in nums %}{% endfor %}", "{% for i in %}{% endfor %}", "{% endfor %}", "{% for i in nums %}{% endif %}",
        "{% for i in nums %}{% for i in [9] %}{{ i }}{% endfor %}{{ i }} {% endfor %}", "{% for u in users if u.pet is defined and u.pet.kind == 'cat' %}{{ u.name }}{% endfor %}", "{% for i in range(4) %}{{ loop.revindex }}{{ loop.nextitem }}{{ loop.length }} {% endfor %}", "{% for i in nums|select %}{{ loop.nextitem }}{{ loop.length }}{{ loop.last }} {% endfor %}", "{% for i in [1, 2] %}{% for j in [] %}{% else %}{{ loop is defined }}{{ loop.index }}{% endfor %}{% endfor %}",
    ],
    "set and scopes": [
        "{% set x = 1 %}{{ x }}", "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set x, y = [1, 2] %}{{ x }}{{ y }}", "{% set x, y = 1 %}", "{% set (x, y) = (1, 2) %}{{ x }}{{ y }}", "{% set x = 1, 2 %}{{ x }}", "{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]", "{% set x | upper %}abc{% endset %}{{ x }}", "{% set x | upper | replace('A', '-') %}abc{% endset %}{{ x }}", "{% set x %}{% set y = 1 %}{% endset %}{{ y }}", "{% if true %}{% set x = 1 %}{% endif %}{{ x }}", "{% if false %}{% set x = 1 %}{% endif %}{{ x }}",
        "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}", "{% set ns = namespace(a=1, b='x') %}{% set ns.a = 2 %}{% set ns.c = [1] %}{{ ns.a }}{{ ns.b }}{{ ns.c }}", "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}", "{% set d.x = 1 %}", "{% set nope.x = 1 %}", "{% set ns = namespace() %}{% set ns.x %}block{% endset %}{{ ns.x }}", "{% set ns = namespace(x=0) %}{% if true %}{% set ns.x = 5 %}{% endif %}{{ ns.x }}", "{% set true = 1 %}", "{% set 1 = 1 %}", "{% set x[0] = 1 %}", "{% set x.y.z = 1 %}", "{% set x %}", "{% set x = %}", "{% set = 1 %}", "{% set 'a' = 1 %}",
        "{% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x }}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with a, b = (1, 2) %}{{ a }}{{ b }}{% endwith %}", "{% set range = 5 %}{{ range }}", "{% set messages = messages[1:] %}{{ messages|length }}", "{% set x = x|default(3) %}{{ x }}", "{% set n = n + 1 %}{{ n }}", "{% for i in [1] %}{% if true %}{% set y = i %}{% endif %}{{ y }}{% endfor %}{{ y }}", "{% set x = 1 %}{% for i in [1, 2] %}{% if i == 1 %}{% set x = 2 %}{% endif %}{{ x }}{% endfor %}",
        "{% set x = none %}{{ x is none }}", "{% set x = nope %}{{ x is defined }}{{ x }}", "{% set x = nope %}{{ x.y }}", "{% set a = b = 1 %}", "{% if 1 %}a{% elif 2 %}b{% else %}c{% endif %}", "{% if 0 %}a{% elif 2 %}b{% else %}c{% endif %}", "{% if 0 %}a{% elif 0 %}b{% elif 1 %}d{% else %}c{% endif %}", "{% if 0 %}a{% elif 0 %}b{% else %}c{% endif %}", "{% if nope %}a{% endif %}|", "{% if nope.x %}a{% endif %}", "{% if %}a{% endif %}", "{% if 1 %}a", "{% if 1 %}a{% else %}b", "{% if 1 %}a{% elif %}{% endif %}", "{% if 1: %}a{% endif %}", "{% if 1 and\n 2 %}a{% endif %}", "{% if 1, %}a{% endif %}", "{% elif %}", "{% else %}", "{% if 1 %}{% else %}{% else %}{% endif %}",
        "{% print 1 + 1 %}", "{% filter upper %}abc {{ s }}{% endfilter %}", "{% filter replace('a', 'o')|upper %}banana{% endfilter %}", "{% filter indent(2, true) %}a\nb{% endfilter %}", "{% filter nofilter %}{% endfilter %}", "{% filter %}{% endfilter %}", "{% filter upper %}{% set q = 1 %}{% endfilter %}{{ q }}", "{% set x = 5 %}{% filter upper %}{{ x }}{% endfilter %}", "{% set x %}{% for i in [1, 2] %}{{ i }}{% endfor %}{% endset %}{{ x|length }}", "{% for i in [1, 2, 3] %}{% set x %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% endset %}{{ x }}{% endfor %}", "{% set s = s|upper %}{{ s }}", "{% set ns = namespace(l=[]) %}{% for i in nums %}{% set ns.l = ns.l + [i * 2] %}{% endfor %}{{ ns.l }}", "{% set ns = namespace(d={}) %}{% set ns.d = dict(ns.d, a=1) %}{{ ns.d }}",
        "{% unknown %}", "{% %}", "{% 5 %}", "{% do x %}", "{{ }}", "{{ 1 2 }}", "{{ 1 + }}", "{{ (1 }}", "{{ 1) }}", "{{ [1 }}", "{{ {'a' 1} }}", "{{ 'abc }}", "{{ a b }}", "{{ x | }}", "{{ x is }}", "{{ x. }}", "{{ x.'a' }}", "{{ x[ }}", "{{ f(a=1, 2) }}", "{{ f(**d, *l) }}", "{{ ! }}", "{{ a ? b }}", "{{ $x }}", "{{ `x` }}", "{% if x %}", "{{ x", "{% set x = 1", "{# x", "{% raw %}x", "{{ '\\x4' }}", "{{ '\\ud800' }}", "{{ \"\\N{DASH}\" }}", "{{ not }}", "{{ 1 if }}", "{{ a.1b }}", "{{ 1.e5 }}", "{{ 1..real }}", "{{ .5 }}", "{{ 007 }}", "{{ 1__0 }}", "{{ 0x }}", "{{ é }}", "{% set é = 1 %}{{ é }}", "{{ x|upper| }}", "{{ a=1 }}", "{{ a;b }}", "{{ lambda: 1 }}", "{{ [x for x in y] }}", "{{ 1 is 1 }}", "{{ a is b.c }}",
        "{% if 0 %}{{ 1|nofilter }}{% endif %}ok", "{% if 1 %}{{ 1|nofilter }}{% endif %}", "{{ 1|nofilter if 0 else 'ok' }}", "{{ 1 is notest if 0 else 'ok' }}", "{{ 'ok' if 1 else 1|nofilter }}", "{{ 1|nofilter }}", "{% set x = 1|nofilter %}", "{{ (1)(2) }}", "{{ 'a'('b') }}", "{{ [1,2](0) }}", "{{ \"{{ 'nested' }}\" }}", "{{ '{% raw %}' }}", "{{ 'a' 'b' ~ 'c' }}", "{{ true.x }}", "{{ {}.items() }}", "{{ ().count(1) }}", "{{ {'a': 1}.items()|list }}", "{{ -1|abs }}", "{{ (-1)|abs }}", "{{ -1.5|round }}", "{{ not true is true }}", "{{ 1 + 2|string }}", "{{ 'x' in 'xy' and 'y' in 'xy' }}", "{{ 2 * n is odd }}", "{{ n|string ~ 'a'|upper }}", "{{ -n|string }}", "{{ [1, 2, 3][-1] }}", "{{ d.C|first + 1 }}", "{{ a.b if a is defined }}", "{{ yes is true and no is false }}",
    ],
    "macros": [
        "{% macro m() %}x{% endmacro %}{{ m() }}{{ m() }}", "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=4, a=5) }} {{ m() }}", "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}", "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}", "{% macro m() %}{{ varargs }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{{ varargs|join(',') }}{% endmacro %}{{ m(1, 2, 3) }}",
        "{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(x=1, y=2) }}", "{% macro m(a) %}{{ kwargs.z }}{{ varargs }}{% endmacro %}{{ m(1, 2, z=3) }}", "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}body{{ s }}{% endcall %}", "{% macro m() %}{{ caller('p', 2) }}{% endmacro %}{% call(a, b=1) m() %}{{ a }}{{ b }}{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}", "{% macro m(x) %}{{ caller() }}{{ x }}{% endmacro %}{% call m(5) %}{% set q = 1 %}{{ q }}{% endcall %}{{ q }}",
        "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{% macro m() %}{{ y }}{% endmacro %}{% set y = 5 %}{{ m() }}", "{% set y = 1 %}{% macro m() %}{{ y }}{% set y = 2 %}{{ y }}{% endmacro %}{{ m() }}{{ y }}", "{% macro m() %}{% set z = 1 %}{% endmacro %}{{ m() }}{{ z }}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{% if true %}{% macro m() %}x{% endmacro %}{% endif %}{{ m() }}", "{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% for i in [1, 2] %}{% macro m() %}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m() %}{{ s }}{% endmacro %}{% for s in [1] %}{{ m() }}{% endfor %}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% macro m() -%}  x  {%- endmacro %}[{{ m() }}]", "{% macro m() %}\n  x\n{% endmacro %}[{{ m() }}]", "{{ m }}", "{% macro m(a) %}{% endmacro %}{{ m.name }}{{ m is callable }}", "{% macro m() %}abc{% endmacro %}{{ m()|upper }}{{ m()|length }}", "{% macro m() %}{% for i in [1, 2] %}{{ i }}{% endfor %}{% endmacro %}{{ m() ~ m() }}", "{% macro m(x) %}{{ x is defined }}{{ x }}{% endmacro %}{{ m(nope) }}", "{% macro m(a=[]) %}{{ a }}{% endmacro %}{{ m() }}{{ m([1]) }}", "{% macro m(a, b) %}{% endmacro %}{{ m(1, 2) }}|", "{% macro %}{% endmacro %}", "{% macro m %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(1) %}{% endmacro %}", "{% macro m() %}", "{% call m() %}{% endcall %}", "{% call m %}{% endcall %}", "{% call 5 %}{% endcall %}",
        "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}o{% endmacro %}{{ outer() }}{{ inner is defined }}", "{% macro m() %}{{ caller() }}{% endmacro %}{% for i in [1, 2] %}{% call m() %}{{ i }}{{ loop.index }}{% endcall %}{% endfor %}", "{% macro m(t) %}<{{ t }}>{{ caller(t) }}</{{ t }}>{% endmacro %}{% call(x) m('b') %}{{ x|upper }}{% endcall %}", "{% set x = 1 %}{% macro m(x) %}{{ x }}{% endmacro %}{{ m(2) }}{{ x }}", "{% macro m(**kw) %}{% endmacro %}", "{% macro m(x) %}{{ x() }}{% endmacro %}{% macro y() %}Y{% endmacro %}{{ m(y) }}", "{% macro m() %}{% set ns.v = ns.v + 1 %}{% endmacro %}{% set ns = namespace(v=0) %}{{ m() }}{{ m() }}{{ ns.v }}", "{% macro m(*a) %}{% endmacro %}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'a': 2}) }}", "{% macro m(items) %}{% for i in items %}{{ i }}{% if loop.first %}{{ m(items[1:]) }}{% endif %}{% endfor %}{% endmacro %}{{ m([1, 2, 3]) }}",
        "{% macro m() %}{{ raise_exception('in macro') }}{% endmacro %}{{ m() }}", "{% set j = joiner('; ') %}{{ j() }}a{{ j() }}b{{ j() }}c", "{% set ns = namespace(f=s.upper) %}{{ ns.f() }}", "{% set up = s.upper %}{{ up() }}", "{% set l = [s.lower] %}{{ l[0]() }}",
    ],
    "generation": [
        "a{% generation %}b{% endgeneration %}c", "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}", "é{% generation %}中😀{% endgeneration %}!{% generation %}x{% endgeneration %}", "{% generation %}{% endgeneration %}", "a\n  {% generation %}\n  b\n  {% endgeneration %}\nc", "a {%- generation -%} b {%- endgeneration -%} c", "{% for i in [1, 2] %}{{ i }}{% generation %}{% set x = i %}{{ x }}{% endgeneration %}{{ x }}{% endfor %}", "{% generation %}a", "{% endgeneration %}", "{% for i in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "{% generation %}{% for m in messages %}{{ m.role }}{% endfor %}{% endgeneration %}|",
    ],
}


def split_expressions(text):
    """Expressions are parted by ' | ' between spaces or by line ends; a backslash at a line's end joins two lines."""
    for line in text.replace("\\\n", "\0").strip().split("\n"):
        for part in line.strip().split(" | "):
            yield "{{ " + part.replace("\0", "\\\n") + " }}"


def rendered(template):
    """The text, or the error, and the characters of generation blocks."""
    try:
        compiled = chat_template_utils._cached_compile_jinja_template(template)
        compiled.environment.globals["strftime_now"] = lambda format: NOW.strftime(format)
        variables = dict(VARIABLES)
        messages = variables.pop("messages")
        text, indices = chat_template_utils._render_with_assistant_indices(
            compiled, messages, None, None, False, **variables)
        text.encode()  # half a surrogate pair is no text
    except Exception as error:
        return [template, None, type(error).__name__, str(error)]
    return [template, text, indices] if "generation" in template else [template, text]


def main():
    groups = {name: list(split_expressions(text)) for name, text in EXPRESSIONS.items()} | TEMPLATES
    lines = [json.dumps("variables") + ": " + json.dumps(VARIABLES) + ","]
    lines.append(json.dumps("cases") + ": {")
    for index, (name, templates) in enumerate(groups.items()):
        lines.append(json.dumps(name) + ": [")
        lines.append(",\n".join(json.dumps(rendered(template)) for template in templates))
        lines.append("]" + ("," if index + 1 < len(groups) else ""))
    text = "{\n" + "\n".join(lines) + "\n}}\n"
    json.loads(text)
    (pathlib.Path(__file__).parent / "jinja_cases.json").write_text(text)
    print(sum(map(len, groups.values())), "cases")


main()
