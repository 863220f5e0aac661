"""The checks by which a silo refuses requests, before any work is done.

In a plain federation a silo answers every server with the same app, which defines what answers may disclose. With
secure sums, a single silo's part in a sum must not follow from several sums. So a silo answers only exchanges of the
run's configuration, with the run's silos, once, and always for the same content.
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
    """A message to a silo, with the server's claims about it, which are not trusted, and the silo."""

    message: Message
    context: Context
    asked: dict[str, Any]
    silo: OpenSilo
    memory: Memory
    stage: Stage
    position: int | None
    """Position of the phase in its stage; None if no phase is requested."""

    @property
    def phase(self) -> Phase | None:
        """The job's phase, whose replies pass the channel before they leave the silo."""
        return None if self.position is None else self.silo.job.phases(self.stage)[self.position]

    @property
    def run(self) -> str:
        return str(self.asked["run"])

    @property
    def number(self) -> int:
        """Number of the exchange."""
        return int(self.asked["exchange"])

    @property
    def round(self) -> int:
        return int(self.asked["round"])

    @property
    def evaluates(self) -> bool:
        """True if an evaluation is requested."""
        return bool(self.asked["evaluate"])

    @property
    def origin(self) -> int:
        """Number of the exchange from whose state the silo continues."""
        return int(self.asked["from"])

    @property
    def kept(self) -> int:
        """Number of an exchange with a state that the silo must keep."""
        return int(self.asked["keep"])


class Masking(NamedTuple):
    """An exchange for which the silo may mask its numbers."""

    secrets: Silo
    exchange: Exchange
    sent: bytes
    """Digest of the content that is the same for all silos."""


# -- in every federation -----------------------------------------------------------------------------------------------


def check_agreed(setting: Setting, context: Context) -> None:
    """Check the app's configuration, which comes from the server, against the settings of the silo's operator."""
    hides = [key for key in ("secure", "key", "roster") if context.node_config.get(key)]
    if hides and not setting.secure:
        raise ConfigError(
            f"the node takes part in secure sums only ({hides[0]} in its --node-config), and the app's configuration "
            "does not use them: secure = true is missing in its section [run]."
        )
    agreed = context.node_config.get("app")
    if agreed is not None and agreed != setting.digest:
        raise ConfigError(
            "the app's configuration is not the one that the silo has agreed to (app in its --node-config). Compare "
            "federation.toml and schema.json; `equifed flower digest` prints what app must be."
        )


def check_same_app(setting: Setting, message: Message) -> None:
    """Check that server and silo have the same app."""
    if read_about(message.content)["app"] != setting.digest:
        raise ConfigError(
            "its app has another configuration, schema, version of equifed or frozen part of the model than the "
            "server's: install the same everywhere."
        )


def check_same_rows(request: Request) -> None:
    """Check that the silo's file has the rows with which the run began."""
    if not request.memory.know_again(fingerprint([request.silo.job.federation])):
        raise BadMessage("cannot be made: its file has other rows than when the run began. Restore the original file")


# -- with secure sums --------------------------------------------------------------------------------------------------


def check_joining(request: Request) -> Masking:
    """Check the exchange in which the silos' rows are summed, and record if a roster confirms their keys."""
    setting = request.silo.setting
    if not setting.secure or request.number != JOINING:
        raise BadMessage("cannot be made: this run has no such secure sum")
    content, secrets = request.message.content, secrets_of(request.context, request.run)
    exchange = read_asking(content, secrets.run, JOINING, len(setting.silos))
    _check_cohort(exchange, setting.silos)
    secrets.check(exchange)
    roster, signatures = roster_of(request.context), read_signatures(content)
    if roster is not None:
        for name, key in zip(exchange.names, exchange.keys, strict=True):
            roster.check(name, secrets.run, setting.digest, key, signatures.get(name, b""))
    secrets.record_vouched(roster is not None)
    return Masking(secrets, exchange, digest(content))


def roster_of(context: Context) -> Roster | None:
    """Return the list of the silos' public keys; None if the silo trusts the server for them."""
    file = context.node_config.get("roster")
    return Roster.read(Path(str(file))) if file else None


def check_exchange(request: Request) -> Masking | None:
    """Check a phase or an evaluation, and record its content. Return the exchange for which the answer is masked; None
    if a phase's reply is not masked, because it only confirms that the silo took part."""
    job, phase = request.silo.job, request.phase
    # the configuration that the silos agreed on decides whether replies are masked, never a message
    hidden = phase is None or job.channel.is_hidden(phase)
    everyone = phase is None or job.asked(request.stage) == job.task.num_clients
    if request.evaluates and not (hidden and everyone):
        raise BadMessage("cannot be made: this may be disclosed only as a sum over all silos")
    check_step(job, request.stage, request.position, request.round, request.number, request.evaluates)
    secrets = secrets_of(request.context, request.run)
    exchange = _checked_sum(request, secrets, everyone) if hidden else None
    sent = digest(request.message.content)
    secrets.record_message(request.number, sent)
    if phase is not None and request.evaluates:  # so that the previous round is not evaluated separately, too
        secrets.record_message(evaluation_number(request.round - 1), str(request.number).encode())
    return None if exchange is None else Masking(secrets, exchange, sent)


def _checked_sum(request: Request, secrets: Silo, everyone: bool) -> Exchange:
    """Check and return the secure sum that the silo's answer is part of, its silos, and the states they continue
    from."""
    job, content = request.silo.job, request.message.content
    members = (job.everyone() if everyone else job.cohorts(request.round))[0]
    exchange = read_asking(content, secrets.run, request.number, len(members))
    _check_known(secrets, exchange)
    _check_cohort(exchange, [job.federation.ids[k] for k in members])
    secrets.check(exchange)
    states = read_states(content)
    if states.get(request.silo.name) != request.origin:
        raise BadMessage("cannot be made: the other silos received a different starting exchange for this silo")
    secrets.check_states(request.origin, states.values())
    return exchange


def check_step(job: Job, stage: Stage, position: int | None, round: int, number: int, evaluate: bool) -> None:
    """Check that an exchange's number belongs to this phase and round, or to this round's evaluation, of the run. A
    silo masks each for one sum only: requested in other rounds, with other dropouts, it would disclose one silo's
    part."""
    if not 0 <= round <= job.rounds:
        raise BadMessage("cannot be made: the run has no such round")
    ends = round > 0 and (round == job.rounds or job.method.may_converge)
    measured = round > 0 and round % job.settings.eval_every == 0
    # if all silos are in a round's first exchange, the previous round's model is evaluated with it
    along = job.asked("round") == job.task.num_clients and job.channel.is_hidden(job.phases("round")[0])
    if position is None:
        if number != evaluation_number(round) or not (ends or (measured and not along)):
            raise BadMessage("cannot be made: the run has no evaluation then")
        return
    positions = [p for p, phase in enumerate(job.phases(stage)) for _ in range(phase.repeat(job.task))]
    step = number - exchange_number(round, stage, 0)
    if not 0 <= step < len(positions) or positions[step] != position:
        raise BadMessage("cannot be made: the exchange has the number of another one")
    if (round == 0) != (stage == "setup") or (stage == "final" and not ends):
        raise BadMessage("cannot be made: that round has no such exchange")
    before = round > 1 and (round - 1) % job.settings.eval_every == 0
    if evaluate and not (along and before and stage == "round" and step == 0):
        raise BadMessage("cannot be made: the run has no evaluation then")


def _check_cohort(exchange: Exchange, members: Sequence[str]) -> None:
    """Check that the exchange's silos belong to the configuration's cohort, `members`: a malicious server that could
    choose would place a silo among colluding ones."""
    strangers = {*exchange.names} - {*members}
    if strangers:
        raise BadMessage(f"cannot be made: {quoted(min(strangers))} does not belong to the cohort")


def _check_known(secrets: Silo, exchange: Exchange) -> None:
    """Check that the exchange's silos were present when the rows were summed, when keys and signatures were checked."""
    strangers = {*exchange.names} - {secrets.name} - secrets.peers
    if strangers:
        raise BadMessage(f"cannot be made: {quoted(min(strangers))} was not present when the silos' rows were summed")
