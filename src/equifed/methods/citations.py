"""How to cite a method: the first paragraph of its module, and its entry in references.bib."""

from __future__ import annotations

import inspect
import re
import sys
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from equifed.methods.postprocess import PostProcessed
from equifed.protocol import Method


class Citation(NamedTuple):
    plain: str
    """One line; empty for a method that has no paper."""
    bibtex: str
    """Empty where references.bib has no entry."""


def citation(kind: type[Method]) -> Citation:
    """A module's first paragraph is a citation when it names a year or an arXiv number.

    For a post-processed method, its own and the rule's: see `citations`.
    """
    parts = citations(kind)
    return Citation("; ".join(part.plain for part in parts), "\n\n".join(part.bibtex for part in parts if part.bibtex))


def citations(kind: type[Method]) -> list[Citation]:
    """The papers of a method: one, none, or for a post-processed one also that of the rule."""
    if issubclass(kind, PostProcessed):
        rule = Citation(kind.post_citation, _entries().get(kind.post_suffix, ""))
        inner: Any = kind.__bases__[-1]
        return [*citations(inner), rule]
    own = _own(kind)
    return [own] if own.plain or own.bibtex else []


def _own(kind: type[Method]) -> Citation:
    first = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "").split("\n\n")[0]
    named = re.search(r"\b(19|20)\d\d\b|arXiv:", first)
    return Citation(" ".join(first.split()) if named else "", _entries().get(kind.name, ""))


@cache
def _entries() -> dict[str, str]:
    """references.bib by method, without the line that names the methods."""
    text = resources.files("equifed.methods").joinpath("references.bib").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for entry in re.findall(r"^@.*?^}", text, re.MULTILINE | re.DOTALL):
        names = re.search(r"^ *methods *= *\{(.*)\},\n", entry, re.MULTILINE)
        if names:
            rest = entry[: names.start()] + entry[names.end() :]
            found |= {name.strip(): rest for name in names[1].split(",")}
    return found
