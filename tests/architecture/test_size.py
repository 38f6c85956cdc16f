"""Sizes that keep the code readable, and marks that do not belong in a finished file."""
from __future__ import annotations

import re

import pytest

from ._source import PACKAGES, long_functions, python_files, relative, text_files

FILE_LINES = 400
FUNCTION_LINES = 60
CODE = {".py", ".cu", ".cuh", ".c", ".h", ".hpp"}
# Written in two halves, so that this file does not hold what it looks for.
MARKS = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
PATHS = re.compile(r"(?<![\w.])/(?:wo" r"rk|ro" r"ot|fa" r"rm|ho" r"me|Us" r"ers)/")


def test_files_are_short():
    code = [path for path in text_files() if path.suffix in CODE]
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in code}
    assert {".py", ".cu", ".c"} <= {path.suffix for path in code}
    long = [f"{name}: {count} lines" for name, count in lengths.items() if count >= FILE_LINES]
    assert not long, f"split at a seam, {FILE_LINES} lines is the end:\n" + "\n".join(long)


def test_functions_are_short():
    long = [
        f"{relative(path)}:{line} {name}: {length} lines"
        for path in python_files(*PACKAGES, "examples", "benchmarks", "tests", "tools")
        for line, name, length in long_functions(path.read_text(encoding="utf-8"), FUNCTION_LINES)
    ]
    assert not long, f"{FUNCTION_LINES} lines without the docstring is the end:\n" + "\n".join(long)


def test_nothing_is_left_open_and_no_file_names_one_machine():
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if MARKS.search(line) or PATHS.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("body", "length"), [(59, None), (60, 60)])
def test_a_long_function_is_seen_and_its_docstring_is_free(body, length):
    lines = ["def f():", '    """One.', *["    more"] * 40, '    """', *["    x = 1"] * body]
    found = long_functions("\n".join(lines), FUNCTION_LINES)
    assert found == ([] if length is None else [(1, "f", length)])


@pytest.mark.parametrize("line", ["# TO" + "DO later", "path = '/ro" + "ot/data'", "(/ho" + "me/me/x)"])
def test_a_mark_or_path_is_seen(line):
    assert MARKS.search(line) or PATHS.search(line)


@pytest.mark.parametrize("line", ["shape.methodo", "a/work/b", "https://x.org/home", "tests/home/x"])
def test_harmless_text_is_not_a_mark_or_path(line):
    assert not MARKS.search(line) and not PATHS.search(line)
