"""What follows from how many silos there are: when a sum can be had, and what it costs to send.

There is no cryptography in it, so that the simulator goes by the same rules.
"""

from __future__ import annotations

from equifed.notes import Note

FEWEST = 3
"""Silos of an exchange, and of a sum: of two, each knows the other's part."""
DIGEST, SHARE, SEALED = 32, 17, 45
"""Bytes of a transcript, commitment, seed or opener; of a share of a self-mask; of a share sealed for another silo."""


def threshold(silos: int) -> int:
    """How many of the silos that an exchange is planned for must help to unmask it: more than two thirds. So with fewer
    than a third of them in its pay, a lying server cannot have two different sums of one exchange."""
    return 2 * silos // 3 + 1


def unsummed(cohort: int, masked: int, told: int, planned: int | None = None) -> Note | None:
    """Why there is no sum; None if there is one, which is over all `masked`.

    cohort: silos that were asked. masked: those whose masked reply came and is used. told: those of them who then
    answered `unmask`. If all have masked, the threshold of answers is enough. If somebody is gone, each of the others
    alone knows the mask that it shares with the one who is gone, so all of them must answer. planned: silos that the
    exchange is planned for, where not all of them could be asked.
    """
    needed = max(threshold(planned or cohort), FEWEST)
    if masked < needed:
        return Note("too-few-masked", {"masked": masked, "cohort": cohort, "needed": needed})
    needed = needed if masked == cohort else masked
    if told < needed:
        return Note("too-few-unmasked", {"told": told, "masked": masked, "cohort": cohort, "needed": needed})
    return None


def masked_bytes(values: int, silos: int) -> int:
    """Bytes of a masked reply in an exchange of so many silos: the values, a commitment, a sealed share for each other
    silo."""
    return 8 * values + DIGEST + SEALED * (silos - 1)


def unmask_bytes(silos: int, gone: int) -> tuple[int, int]:
    """Bytes of the question `unmask` to one silo (the transcript and the shares sealed for it by those who are still
    there), and of its answer (a share of each of their self-masks and, if any are gone, a seed for each of these and an
    opener for each other who is still there)."""
    there = silos - gone
    return DIGEST + SEALED * (there - 1), SHARE * there + DIGEST * (gone + there - 1 if gone else 0)
