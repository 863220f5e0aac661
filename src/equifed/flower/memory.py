"""What a client remembers between exchanges. It never leaves the silo.

A client keeps its state after every reply, under the number of the exchange. The server names the exchange whose state
the client is to go on from: that of its last reply which was used. So a reply that was refused, came too late, or
belonged to a round that was not applied leaves no trace, and a run goes on from its checkpoint after the server died.
"""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, Context
from safetensors.torch import load_file, save

from equifed import tree
from equifed.flower.records import BadMessage
from equifed.store.files import write_atomic
from equifed.tree import Tree

STAGES = ("setup", "round", "final")
MOST_PHASES = 1000


def exchange_number(round: int, stage: str, position: int) -> int:
    """A number for each exchange of a run, larger for later ones; 0 is before all."""
    return (round * len(STAGES) + STAGES.index(stage)) * MOST_PHASES + position + 1


class Memory:
    """The states kept so far: in Flower's own context, and in the silo's folder for this run where there is one."""

    def __init__(self, context: Context, folder: Path | None) -> None:
        self.context, self.folder = context, folder

    def recall(self, number: int, like: Tree) -> Tree:
        """The state after exchange `number`; `like` is the state before the first."""
        if number == 0 or not tree.leaves(like):
            return like
        kept = self._kept(number)
        if kept is None:
            raise BadMessage(
                "cannot be made: the memory that this method keeps at the silo is not there any more. Start its node "
                "with the state folder it had, or start a new run"
            )
        return tree.from_named(like, kept)

    def keep(self, number: int, state: Tree, needed: set[int]) -> None:
        """Remember the state after exchange `number`, and forget the others that are not needed."""
        values = tree.named(state)
        if not values:
            return
        self.context.state[_name(number)] = ArrayRecord(
            {name: Array(leaf.detach().cpu().numpy()) for name, leaf in values.items()}
        )
        stale = [name for name in self.context.state if name not in {_name(each) for each in (number, *needed)}]
        for name in stale:
            del self.context.state[name]
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(
            self._file(number), save({name: leaf.detach().cpu().contiguous() for name, leaf in values.items()})
        )
        for file in self.folder.glob("*.safetensors"):
            if file.name not in {self._file(each).name for each in (number, *needed)}:
                file.unlink()

    def _kept(self, number: int) -> dict[str, torch.Tensor] | None:
        record = self.context.state.get(_name(number))
        if isinstance(record, ArrayRecord):
            return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}
        if self.folder is not None and self._file(number).is_file():
            return dict(load_file(self._file(number)))
        return None

    def _file(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{number:09d}.safetensors"


def _name(number: int) -> str:
    return f"after.{number}"
