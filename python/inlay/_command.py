"""The `inlay` command of an installed wheel: the program that came with it, in the place of this process."""

import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "inlay")
    os.execv(program, [program, *sys.argv[1:]])
