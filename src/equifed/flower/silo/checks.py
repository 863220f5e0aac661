"""What a silo refuses, whatever the server asks, before any work is done on it.

In a plain federation a silo answers whoever has the same app; what its answers may disclose is settled there. Where
sums are secure, a single silo's part in a sum must not follow from several of them. So every exchange is one that the
run has, with the silos that the run has in it, once, and what a silo is sent in it never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Context, Message

from equifed.errors import ConfigError
from equifed.flower.agreement import Setting
from equifed.flower.joining import JOINING
from equifed.flower.masks import digest, read_asking, read_signatures, read_states, secrets_of
from equifed.flower.memory import Memory, evaluation_number, exchange_number
from equifed.flower.records import BadMessage, read_about
from equifed.flower.silo.rows import OpenSilo
from equifed.protocol import Phase, Stage
from equifed.secure import Exchange, Roster, Silo
from equifed.simulator import Job
from equifed.store.environment import fingerprint
from equifed.words import quoted


@dataclass(frozen=True, eq=False)
class Request:
    """A message to a silo: what the server says that it is about, which is not believed, and who is asked."""

    message: Message
    context: Context
    asked: dict[str, Any]
    silo: OpenSilo
    memory: Memory
    stage: Stage
    position: int | None
    """Of the phase in its stage; None where no phase is asked for."""

    @property
    def phase(self) -> Phase | None:
        """The job's phase: what leaves the silo has gone through the channel."""
        return None if self.position is None else self.silo.job.phases(self.stage)[self.position]

    @property
    def run(self) -> str:
        return str(self.asked["run"])

    @property
    def number(self) -> int:
        """The exchange's number."""
        return int(self.asked["exchange"])

    @property
    def round(self) -> int:
        return int(self.asked["round"])

    @property
    def evaluates(self) -> bool:
        """Whether an evaluation is asked for."""
        return bool(self.asked["evaluate"])

    @property
    def origin(self) -> int:
        """The exchange from whose state the silo is to go on."""
        return int(self.asked["from"])

    @property
    def kept(self) -> int:
        """An exchange whose state the silo is to keep."""
        return int(self.asked["keep"])


class Masking(NamedTuple):
    """An exchange that the silo may mask its numbers for."""

    secrets: Silo
    exchange: Exchange
    sent: bytes
    """The digest of what all silos were sent alike."""


# -- in every federation -----------------------------------------------------------------------------------------------


def check_agreed(setting: Setting, context: Context) -> None:
    """Check the app's configuration, which comes from the server, by what the silo's operator has set for its node."""
    hides = [key for key in ("secure", "key", "roster") if context.node_config.get(key)]
    if hides and not setting.secure:
        raise ConfigError(
            f"the node takes part in secure sums only ({hides[0]} in its --node-config), and the app's configuration "
            "has none: secure = true is missing in its section [run]."
        )
    agreed = context.node_config.get("app")
    if agreed is not None and agreed != setting.digest:
        raise ConfigError(
            "the app's configuration is not the one that the silo has agreed to (app in its --node-config). Compare "
            "federation.toml and schema.json; `equifed flower digest` prints what app must be."
        )


def check_same_app(setting: Setting, message: Message) -> None:
    """Check that the server has the app that the silo has."""
    if read_about(message.content)["app"] != setting.digest:
        raise ConfigError(
            "its app has another configuration, schema, version of equifed or frozen part of the model than the "
            "server's: install the same everywhere."
        )


def check_same_rows(request: Request) -> None:
    """Check that the silo's file has the rows that the run began with."""
    if not request.memory.know_again(fingerprint([request.silo.job.federation])):
        raise BadMessage("cannot be made: its file has other rows than when the run began. Put them back")


# -- where sums are secure ---------------------------------------------------------------------------------------------


def check_joining(request: Request) -> Masking:
    """Check the exchange in which the silos' rows are summed, and remember whether a roster vouches for their keys."""
    setting = request.silo.setting
    if not setting.secure or request.number != JOINING:
        raise BadMessage("cannot be made: nothing of the kind is summed in this run")
    content, secrets = request.message.content, secrets_of(request.context, request.run)
    exchange = read_asking(content, secrets.run, JOINING, len(setting.silos))
    _check_cohort(exchange, setting.silos)
    secrets.check(exchange)
    roster, signatures = roster_of(request.context), read_signatures(content)
    if roster is not None:
        for name, key in zip(exchange.names, exchange.keys, strict=True):
            roster.check(name, secrets.run, setting.digest, key, signatures.get(name, b""))
    secrets.vouch(roster is not None)
    return Masking(secrets, exchange, digest(content))


def roster_of(context: Context) -> Roster | None:
    """Return whose node has which key, as the silos have given them to each other; None where the server's word is
    taken for it."""
    file = context.node_config.get("roster")
    return Roster.read(Path(str(file))) if file else None


def check_exchange(request: Request) -> Masking | None:
    """Check a phase or an evaluation, and remember what was sent in it. Return what its answer is masked for; None
    where a phase's reply is not masked, since it says no more than that the silo took part."""
    job, phase = request.silo.job, request.phase
    # whether replies are masked follows from the configuration that the silos agreed on, never from a message
    hidden = phase is None or job.channel.hides(phase)
    everyone = phase is None or job.asked(request.stage) == job.task.num_clients
    if request.evaluates and not (hidden and everyone):
        raise BadMessage("would tell what only a sum over all silos may")
    check_step(job, request.stage, request.position, request.round, request.number, request.evaluates)
    secrets = secrets_of(request.context, request.run)
    exchange = _checked_sum(request, secrets, everyone) if hidden else None
    sent = digest(request.message.content)
    secrets.hear(request.number, sent)
    if phase is not None and request.evaluates:  # so that the round before is not measured by itself, too
        secrets.hear(evaluation_number(request.round - 1), str(request.number).encode())
    return None if exchange is None else Masking(secrets, exchange, sent)


def _checked_sum(request: Request, secrets: Silo, everyone: bool) -> Exchange:
    """Return the sum that the silo's answer is to be a part of: with whom, and from which states they go on."""
    job, content = request.silo.job, request.message.content
    members = (job.everyone() if everyone else job.cohorts(request.round))[0]
    exchange = read_asking(content, secrets.run, request.number, len(members))
    _check_known(secrets, exchange)
    _check_cohort(exchange, [job.federation.ids[k] for k in members])
    secrets.check(exchange)
    states = read_states(content)
    if states.get(request.silo.name) != request.origin:
        raise BadMessage("cannot be made: the others are told that this silo goes on from another exchange")
    secrets.check_states(request.origin, states.values())
    return exchange


def check_step(job: Job, stage: Stage, position: int | None, round: int, number: int, evaluate: bool) -> None:
    """An exchange's number stands for one phase of one round, or for one round's evaluation, as the run has them: a
    silo masks each of them for one sum only. Asked in other rounds, with others gone, it would tell one silo's part."""
    if not 0 <= round <= job.rounds:
        raise BadMessage("cannot be made: the run has no such round")
    ends = round > 0 and (round == job.rounds or job.method.may_converge)
    measured = round > 0 and round % job.settings.eval_every == 0
    # where everyone is in a round's first exchange, the model of the round before is measured with it
    along = job.asked("round") == job.task.num_clients and job.channel.hides(job.phases("round")[0])
    if position is None:
        if number != evaluation_number(round) or not (ends or (measured and not along)):
            raise BadMessage("cannot be made: nothing is measured then")
        return
    positions = [p for p, phase in enumerate(job.phases(stage)) for _ in range(phase.repeat(job.task))]
    step = number - exchange_number(round, stage, 0)
    if not 0 <= step < len(positions) or positions[step] != position:
        raise BadMessage("cannot be made: the exchange has a number that belongs to another")
    if (round == 0) != (stage == "setup") or (stage == "final" and not ends):
        raise BadMessage("cannot be made: that round has no such exchange")
    before = round > 1 and (round - 1) % job.settings.eval_every == 0
    if evaluate and not (along and before and stage == "round" and step == 0):
        raise BadMessage("cannot be made: nothing is measured then")


def _check_cohort(exchange: Exchange, members: Sequence[str]) -> None:
    """Who takes part follows from the configuration, but for those who did not join: a server that could choose would
    put a silo among others that are in its pay. members: those who are to take part."""
    strangers = {*exchange.names} - {*members}
    if strangers:
        raise BadMessage(f"cannot be made: {quoted(min(strangers))} does not belong to the cohort")


def _check_known(secrets: Silo, exchange: Exchange) -> None:
    """Who takes part was there when the silos' rows were summed: their keys, and signatures, were looked at then."""
    strangers = {*exchange.names} - {secrets.name} - secrets.peers
    if strangers:
        raise BadMessage(f"cannot be made: {quoted(min(strangers))} was not there when the silos' rows were summed")
