"""Mutate every derivative rule that the rows of tests/specs use, and print what became of the mutants.

    python -m tests.testing.mutation_report [--sample N] [--unseen]

The exit status is 1 where a mutant survives.
"""
from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from typing import Any

from ruda_autodiff.testing import MutationReport, run_mutants
from tests import specs


def rows() -> list[Any]:
    names = sorted(info.name for info in pkgutil.iter_modules(specs.__path__) if not info.name.startswith("_"))
    return [row for name in names for row in importlib.import_module(f"tests.specs.{name}").ROWS]


def main(arguments: list[str] | None = None) -> MutationReport:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, help="that many mutants at random; all by default")
    parser.add_argument("--unseen", action="store_true", help="list the mutants that no row tells from the rule")
    options = parser.parse_args(arguments)
    report = run_mutants(rows(), sample=options.sample)
    print(report)
    if options.unseen:
        print("\n".join(f"  {name}  ({reason})" for name, reason in report.unseen))
    return report


if __name__ == "__main__":
    sys.exit(bool(main().survived))
