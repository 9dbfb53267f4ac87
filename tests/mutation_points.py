#!/usr/bin/env python3
"""Faults of one place in C++ sources: tests/mutation_points.py SEED FILE...

Prints them in a random order that SEED decides, each as a line "FILE:LINE<tab>OFFSET<tab>LENGTH<tab>TEXT<tab>KIND", which says that TEXT
takes the place of LENGTH bytes at OFFSET. The kinds come equally often, as long as each lasts. An operator is told from a bracket of a
template or a pointer by the spaces that clang-format puts around it. Some faults do not compile, since this reads no types.
"""
import random
import re
import sys

OPPOSITES = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-", "-": "+", "*": "/",
             "/": "*", "%": "/", "+=": "-=", "-=": "+=", "true": "false", "false": "true", "break": "continue", "continue": "break"}


def opposite(found):
    return OPPOSITES[found[1]]


def larger(found):
    return str(int(found[1]) + 1)


def doubled(found):
    return f"(2 * {found[1]})" if float(found[1].rstrip("f")) else "1.0"


def jump(found):
    """None for the break at the end of a case, in whose place a continue often does the same."""
    line = found.string.rfind("\n", 0, found.start()) + 1
    indentation = found.start() - line
    for before in reversed(found.string[:line].splitlines()):
        if before.strip() and len(before) - len(before.lstrip()) < indentation:
            return None if re.match(r" *(case\b|default:)", before) else opposite(found)
    return opposite(found)


def swapped(found):
    return f"{found[3]}, {found[2]}" if found[2] != found[3] else None


# kind: a pattern whose first group is replaced, and what by
KINDS = {
    "comparison": (r" (<=?|>=?|==|!=) ", opposite),
    "logic": (r" (&&|\|\|) ", opposite),
    "negation": (r"(?<=[\s(])(!)(?=[\w(])", lambda found: ""),
    "arithmetic": (r"(?<=[\w)\]]) ([-+*/%]) (?=[\w(])", opposite),
    "update": (r" ([-+]=) ", opposite),
    "truth": (r"\b(true|false)\b", opposite),
    "jump": (r"\b(break|continue)(?=;)", jump),
    "integer": (r"(?<![\w.'])(?<!\de[-+])(\d+)(?![\w.'])", larger),
    "real": (r"(?<![\w.'])(\d+\.\d*(?:e-?\d+)?f?|\d+e-?\d+)(?![\w.'])", doubled),
    "dropped call": (r"(?m)(?:^ +|(?<=\) ))((?!return\b|throw\b|assert\b)[\w.:>-]+\([^;{}]*\))(?=;$)", lambda found: ""),
    "swapped arguments": (r"(?<=\w\()(([\w.]+), ([\w.]+))(?=[,)])", swapped),
}


def blanked(text):
    """The text with spaces for what is no code: comments, strings, lines of the preprocessor, and what only the compiler reads."""
    no_code = r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/|^[ ]*#(?:\\\n|[^\n])*|\bstatic_assert\(.*?;|\btemplate <[^\n]*'
    return re.sub(no_code, lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.S | re.M)


def points_of(path):
    code = blanked(open(path, encoding="latin-1").read())  # a byte is a character
    for kind, (pattern, fault) in KINDS.items():
        for found in re.finditer(pattern, code):
            text = fault(found)
            if text is not None:
                line = code.count("\n", 0, found.start(1)) + 1
                yield kind, f"{path}:{line}\t{found.start(1)}\t{len(found[1])}\t{text}\t{kind}"


def main():
    by_kind = {kind: [] for kind in KINDS}
    for path in sorted(sys.argv[2:]):
        for kind, point in points_of(path):
            by_kind[kind].append(point)
    chance = random.Random(int(sys.argv[1]))
    for points in by_kind.values():
        chance.shuffle(points)
    while any(by_kind.values()):
        kind = chance.choice([kind for kind, points in by_kind.items() if points])
        print(by_kind[kind].pop())


if __name__ == "__main__":
    main()
