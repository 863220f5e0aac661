"""Rules that depend on the numbers of silos: when a sum is possible, and the sizes of messages.

They do not need cryptography, so that the simulator uses the same rules.
"""

from __future__ import annotations

from equifed.notes import Note

FEWEST = 3
"""Smallest number of silos of an exchange and of a sum: of two silos, each knows the other's part."""
DIGEST, SHARE, SEALED = 32, 17, 45
"""Bytes of a transcript, commitment, seed or opener; of a share of a self-mask; of a share sealed for another silo."""


def threshold(silos: int) -> int:
    """Return the number of an exchange's planned silos that must help to unmask it: more than two thirds. A malicious
    server that controls fewer than a third of them then cannot get two different sums of one exchange."""
    return 2 * silos // 3 + 1


def find_obstacle(cohort: int, masked: int, told: int, planned: int | None = None) -> Note | None:
    """Return why there is no sum; None if there is one, over all `masked` silos.

    cohort: number of silos asked. masked: number of usable masked replies. told: number of these silos that then
    answered `unmask`. If all have masked, the threshold of answers is enough. If a silo has dropped out, all others
    must answer, because each alone knows its mask with that silo. planned: number of planned silos, if not all of them
    could be asked.
    """
    needed = max(threshold(planned or cohort), FEWEST)
    if masked < needed:
        return Note("too-few-masked", {"masked": masked, "cohort": cohort, "needed": needed})
    needed = needed if masked == cohort else masked
    if told < needed:
        return Note("too-few-unmasked", {"told": told, "masked": masked, "cohort": cohort, "needed": needed})
    return None


def masked_bytes(values: int, silos: int) -> int:
    """Return the bytes of a masked reply in an exchange of `silos` silos: the values, a commitment, and a sealed share
    for each other silo."""
    return 8 * values + DIGEST + SEALED * (silos - 1)


def unmask_bytes(silos: int, gone: int) -> tuple[int, int]:
    """Return the bytes of the request `unmask` to one silo (the transcript and the survivors' shares sealed for it) and
    of its reply (a share of each survivor's self-mask and, if silos have dropped out, a seed for each of these and an
    opener for each other survivor)."""
    there = silos - gone
    return DIGEST + SEALED * (there - 1), SHARE * there + DIGEST * (gone + there - 1 if gone else 0)
