"""Bytes from elsewhere: any, or those of something real with a few of them changed, cut out, doubled or moved."""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("EQUIFED_FUZZ", "40"))
"""How many of each kind are tried: with the variable set, others every time."""

fuzzed = settings(max_examples=EXAMPLES, derandomize="EQUIFED_FUZZ" not in os.environ, deadline=None)


@st.composite
def mutated(draw: st.DrawFn, real: bytes, most: int = 4) -> bytes:
    """Something real, damaged in one to a few places."""
    content = bytearray(real)
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, max(len(content) - 1, 0)))
        what = draw(st.sampled_from(["change", "insert", "cut", "double", "end"]))
        if what == "change" and content:
            content[at] = draw(st.integers(0, 255))
        elif what == "insert":
            content[at:at] = draw(st.binary(min_size=1, max_size=20))
        elif what == "cut":
            del content[at : at + draw(st.integers(1, 40))]
        elif what == "double":
            content[at:at] = content[at : at + draw(st.integers(1, 40))]
        else:
            del content[at:]
    return bytes(content)


def bytes_like(*real: bytes) -> st.SearchStrategy[bytes]:
    return st.one_of(st.binary(max_size=200), *(mutated(each) for each in real))
