"""Citations of methods, from the first paragraph of their modules and references.bib, and of robust rules."""

from __future__ import annotations

import inspect
import re
import sys
from functools import cache
from importlib import resources
from typing import NamedTuple

from equifed.methods._wrapper import Wrapper
from equifed.protocol import Method


class Citation(NamedTuple):
    """The citation of one or more papers."""

    plain: str
    """One line; empty for a method without a paper."""
    bibtex: str
    """BibTeX entries; empty if references.bib has none."""


def citation(method: Method) -> Citation:
    """Return the citation of all papers of a method; see `citations`."""
    papers = citations(method)
    entries = [paper.bibtex for paper in papers if paper.bibtex]
    return Citation("; ".join(paper.plain for paper in papers), "\n\n".join(entries))


def citations(method: Method) -> list[Citation]:
    """Return the papers of a method: at most one for each of its parts."""
    return [paper for paper in map(_paper, method.parts) if paper.plain or paper.bibtex]


RULES: dict[str, str] = {
    **dict.fromkeys(
        ("median", "trimmed-mean"),
        "Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018.",
    ),
    **dict.fromkeys(
        ("krum", "multi-krum"),
        "Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017.",
    ),
    "clipped-mean": "Sun et al., Can You Really Backdoor Federated Learning?, arXiv:1911.07963, 2019.",
}
"""Papers of the robust rules."""


def rule_citation(rule: str) -> Citation:
    """Return the paper of a robust rule."""
    return Citation(RULES[rule], _entries()[rule])


def _paper(part: Method) -> Citation:
    if isinstance(part, Wrapper):
        return Citation(part.citation, _entries().get(part.suffix[1:], ""))
    first = inspect.cleandoc(sys.modules[type(part).__module__].__doc__ or "").split("\n\n")[0]
    # a module's first paragraph is a citation if it has a year or an arXiv number
    named = re.search(r"\b(19|20)\d\d\b|arXiv:", first)
    return Citation(" ".join(first.split()) if named else "", _entries().get(part.name, ""))


@cache
def _entries() -> dict[str, str]:
    """Return the entries of references.bib by method, without their `methods` lines."""
    text = resources.files("equifed.methods").joinpath("references.bib").read_text(encoding="utf-8")
    entries: dict[str, str] = {}
    for entry in re.findall(r"^@.*?^}", text, re.MULTILINE | re.DOTALL):
        names = re.search(r"^ *methods *= *\{(.*)\},\n", entry, re.MULTILINE)
        if names:
            rest = entry[: names.start()] + entry[names.end() :]
            entries |= {name.strip(): rest for name in names[1].split(",")}
    return entries
