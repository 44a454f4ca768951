"""Runs the Python blocks of docs/python.md in order, in one namespace, and says where one fails."""

import re
import sys
import traceback
from pathlib import Path

page = Path(__file__).resolve().parents[2] / "docs/python.md"


def main():
    text = page.read_text()
    names = {"__name__": "__docs__"}
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M))
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        try:
            exec(compile("\n" * line + block.group(1), str(page), "exec"), names)
        except BaseException:
            traceback.print_exc()
            return 1
    print(f"{page.name}: {len(blocks)} blocks ran")
    return 0 if len(blocks) > 5 else 1


if __name__ == "__main__":
    sys.exit(main())
