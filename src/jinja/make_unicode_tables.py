"""Writes unicode_tables.inc: what Python knows about characters and utf8proc does not tell.

    python3 src/jinja/make_unicode_tables.py       # made with Python 3.11, Unicode 14.0

Sets are runs of characters, first and last; characters that change case into several stand apart, as texts. to_title
holds only what differs from to_upper.
"""

import pathlib
import sys
import unicodedata

POINTS = [p for p in range(sys.maxunicode + 1) if not 0xD800 <= p <= 0xDFFF]


def lines(pieces, width=118):
    text, line = [], " "
    for piece in pieces:
        if len(line) + len(piece) + 2 > width:
            text.append(line)
            line = " "
        line += f" {piece},"
    return text + [line]


def table(name, holds):
    runs = []
    for point in POINTS:
        if holds(chr(point)):
            if runs and runs[-1][1] == point - 1:
                runs[-1][1] = point
            else:
                runs.append([point, point])
    return [f"constexpr Run {name}[] = {{", *lines(f"{{{a:#x}, {b:#x}}}" for a, b in runs), "};", ""]


def expansions(name, change, otherwise=lambda c: c):
    points = [p for p in POINTS if len(change(chr(p))) > 1 and change(chr(p)) != otherwise(chr(p))]
    pieces = [f'{{{p:#x}, "{change(chr(p))}"}}' for p in points]
    return [f"constexpr Expansion {name}[] = {{", *lines(pieces), "};", ""]


def main():
    category = unicodedata.category
    text = [
        f"// Made by make_unicode_tables.py from Unicode {unicodedata.unidata_version}. Not to be edited.",
        "// clang-format off",
        "",
        *table("other_digits", lambda c: c.isdigit() and not c.isdecimal()),
        *table("other_numerics", lambda c: c.isnumeric() and category(c)[0] != "N"),
        *table("other_lowercase", lambda c: c.islower() and category(c) != "Ll"),
        *table("other_uppercase", lambda c: c.isupper() and category(c) != "Lu"),
        *expansions("to_upper", str.upper),
        *expansions("to_lower", str.lower),
        *expansions("to_title", str.title, str.upper),
        "// clang-format on",
    ]
    path = pathlib.Path(__file__).parent / "unicode_tables.inc"
    path.write_text("\n".join(text) + "\n", encoding="utf-8")


main()
