"""The source loader: one string per kernel file, headers inlined once, and errors that say where."""
from __future__ import annotations

import pytest

from ruda_tensor.kernels.sources import cuda_source, source_folder

from ._source import ROOT


@pytest.fixture
def folder(tmp_path):
    def write(**files: str):
        for name, text in files.items():
            stem, _, suffix = name.rpartition("_")
            (tmp_path / f"{stem}.{suffix}").write_text(text, encoding="utf-8")
        return tmp_path

    return write


def code(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#line")]


def test_the_checkout_s_own_folder_is_found():
    assert source_folder() == ROOT / "cuda_src"


def test_every_kernel_file_loads():
    for path in sorted((ROOT / "cuda_src").glob("*.cu")):
        assert '#include "' not in cuda_source(path.name)


def test_headers_are_inlined_once_wherever_they_are_asked_for(folder):
    there = folder(
        k_cu='#include <cuda_fp16.h>\n#include "a.cuh"\n  #  include "b.cuh"\nkernel\n',
        a_cuh='#pragma once\n#include "b.cuh"\na\n',
        b_cuh="#pragma once\nb\n",
    )
    text = cuda_source("k.cu", there)
    assert code(text) == ["#include <cuda_fp16.h>", "b", "a", "kernel"]
    assert text.endswith("kernel\n")


def test_lines_keep_their_file_and_number(folder):
    there = folder(k_cu='one\n#include "a.cuh"\nthree\n', a_cuh="#pragma once\ntwo\n")
    place, seen = ("", 0), {}
    for line in cuda_source("k.cu", there).splitlines():
        if line.startswith("#line"):
            _, number, name = line.split()
            place = (name.strip('"'), int(number))
        else:
            seen[line] = place
            place = (place[0], place[1] + 1)
    assert seen["one"] == ("k.cu", 1) and seen["two"] == ("a.cuh", 2) and seen["three"] == ("k.cu", 3)


def test_a_changed_header_changes_the_text(folder):
    there = folder(k_cu='#include "a.cuh"\n', a_cuh="#define A 1\n")
    before = cuda_source("k.cu", there)
    folder(a_cuh="#define A 2\n")
    assert cuda_source("k.cu", there) != before


def test_a_missing_file_says_who_asked_and_what_there_is(folder):
    there = folder(k_cu='\n#include "gone.cuh"\n', a_cuh="a\n")
    with pytest.raises(FileNotFoundError, match=r"'gone\.cuh', included at k\.cu:2; .* has a\.cuh, k\.cu"):
        cuda_source("k.cu", there)
    with pytest.raises(FileNotFoundError, match=r"no CUDA source 'none\.cu'; "):
        cuda_source("none.cu", there)


def test_a_circle_is_shown_whole(folder):
    there = folder(k_cu='#include "a.cuh"\n', a_cuh='#include "b.cuh"\n', b_cuh='\n#include "a.cuh"\n')
    with pytest.raises(ValueError, match=r"circle: k\.cu:1 -> a\.cuh:1 -> b\.cuh:2 -> a\.cuh"):
        cuda_source("k.cu", there)


@pytest.mark.parametrize("name", ["", "../k.cu", "/k.cu", "a\\k.cu", ".k.cu"])
def test_only_plain_names_are_looked_up(folder, name):
    with pytest.raises(ValueError, match="plain file name"):
        cuda_source(name, folder(k_cu="k\n"))
