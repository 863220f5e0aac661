"""What results say beside each other: which method and setting to take, how sure that is, and at what cost.

`Variant` is a method with one setting over its seeds, `Comparison` all that are compared, `Verdict` what may be said of
them, `Answer` what came of a target.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equifed.verdict.answering import answer
    from equifed.verdict.choose import Aim
    from equifed.verdict.comparison import Comparison, check_margin, summary_table
    from equifed.verdict.outcome import Answer
    from equifed.verdict.seek import Seeking, Sought, aimed, need_validation
    from equifed.verdict.sentences import Verdict, verdict, verdict_of
    from equifed.verdict.variants import Variant, variants_in, variants_of

_HOMES = {
    **dict.fromkeys(("answer",), "answering"),
    **dict.fromkeys(("Aim",), "choose"),
    **dict.fromkeys(("Comparison", "check_margin", "summary_table"), "comparison"),
    **dict.fromkeys(("Answer",), "outcome"),
    **dict.fromkeys(("Seeking", "Sought", "aimed", "need_validation"), "seek"),
    **dict.fromkeys(("Verdict", "verdict", "verdict_of"), "sentences"),
    **dict.fromkeys(("Variant", "variants_in", "variants_of"), "variants"),
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"equifed.verdict.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'equifed.verdict' has no attribute {name!r}")
