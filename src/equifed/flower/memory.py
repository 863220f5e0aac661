"""A client's state between exchanges. It never leaves the silo.

A client stores its state after every reply, under the number of the exchange. The server names the exchange from which
the client is to continue: that of its last used reply. So a reply that was refused, arrived too late, or belonged to a
round that was not applied has no effect, and a run can be resumed from its checkpoint after the server was killed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, Context
from safetensors.torch import load, save

from equifed import tree
from equifed.files import checksum, clear_temporaries, make_private_folder, read_regular, write_atomic
from equifed.flower.records import BadMessage
from equifed.protocol import STAGES, Stage
from equifed.tree import Tree

MOST_EXCHANGES = 1000
"""Largest number of exchanges of one stage in one round."""
CHECKSUM = len(checksum(b""))
"""Number of characters of the checksum at the beginning of a state file."""


def exchange_number(round: int, stage: Stage, step: int) -> int:
    """Return the number of an exchange: it increases during a run, and 0 precedes all."""
    return (round * len(STAGES) + STAGES.index(stage)) * MOST_EXCHANGES + step + 1


def evaluation_number(round: int) -> int:
    """Return the number of the exchange that only evaluates a round's model, which is the last of the round."""
    return exchange_number(round, "final", MOST_EXCHANGES - 1)


class Memory:
    """A client's stored states: in Flower's context, and in the silo's state folder for this run if it has one."""

    def __init__(self, context: Context, folder: Path | None) -> None:
        self.context, self.folder = context, folder

    def recall(self, number: int, like: Tree) -> Tree:
        """Return the state after exchange `number`; `like` is the state before the first exchange."""
        if number == 0 or not tree.leaves(like):
            return like
        kept = self._kept(number)
        if kept is None:
            raise BadMessage(
                "cannot be made: the state that this method keeps at the silo is missing. Start its node with the "
                "original state folder, or start a new run"
            )
        return tree.from_named(like, kept)

    def keep(self, number: int, state: Tree, needed: set[int]) -> None:
        """Store the state after exchange `number`, and delete older states that are not needed. Newer ones are kept,
        because a delayed message may be handled after its successors."""
        values = {name: leaf.detach().cpu().contiguous() for name, leaf in tree.to_named(state).items()}
        if not values:
            return
        self.context.state[_name(number)] = ArrayRecord({name: Array(leaf.numpy()) for name, leaf in values.items()})
        for old in self._numbers(self.context.state):
            if old < number and old not in needed:
                del self.context.state[_name(old)]
        if self.folder is None:
            return
        make_private_folder(self.folder)
        # safetensors refuses shared tensors, such as a received model that is two parts of a state: write each
        content = save({name: leaf.clone() for name, leaf in values.items()})
        write_atomic(self.folder / _name(number), checksum(content).encode() + content, mode=0o600)
        for old in self._numbers(file.name for file in self.folder.iterdir()):
            if old < number and old not in needed:
                (self.folder / _name(old)).unlink()

    def know_again(self, rows: str) -> bool:
        """Return True if the rows are those with which the run began, by a mark that never leaves the silo."""
        if self.folder is None:
            return True
        make_private_folder(self.folder)
        clear_temporaries(self.folder)  # safe here: joining is a node's first message
        mark = self.folder / "rows"
        if not mark.exists():
            write_atomic(mark, rows.encode(), mode=0o600)
        return mark.read_text() == rows

    def _kept(self, number: int) -> dict[str, torch.Tensor] | None:
        record = self.context.state.get(_name(number))
        if isinstance(record, ArrayRecord):
            return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}
        if self.folder is None or not (self.folder / _name(number)).is_file():
            return None
        stored = read_regular(self.folder / _name(number))
        digest, content = stored[:CHECKSUM], stored[CHECKSUM:]
        if checksum(content).encode() != digest:
            raise BadMessage(
                "cannot be made: the state that this method keeps at the silo is damaged. Restore its state folder "
                "from a copy, or start a new run"
            )
        return dict(load(content))

    @staticmethod
    def _numbers(names: Iterable[str]) -> list[int]:
        return [int(name.removeprefix(PREFIX)) for name in names if name.startswith(PREFIX)]


PREFIX = "after-"


def _name(number: int) -> str:
    return f"{PREFIX}{number}"
