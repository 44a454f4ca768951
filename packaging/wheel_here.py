"""Prints the wheel in a folder that this Python can install: wheel_here.py FOLDER"""

import sys
from pathlib import Path

minor = sys.version_info[1]
tag = f"cp3{minor}-cp3{minor}" if minor < 12 else "cp312-abi3"
wheels = sorted(Path(sys.argv[1]).glob(f"inlay-*-{tag}-*.whl"))
if len(wheels) != 1:
    sys.exit(f"{sys.argv[1]} has {len(wheels)} wheels of inlay for {tag}, expected one")
print(wheels[0])
