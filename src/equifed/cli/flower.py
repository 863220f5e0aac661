"""`equifed flower`: the commands for a federation on Flower, from its folder to the report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equifed.cli.console import near, print_json, say, show
from equifed.cli.options import ColumnOptions, Trust, command
from equifed.errors import ConfigError

flower_app = typer.Typer(
    help="Train on a real federation with Flower: one silo per machine, over TLS. Needs the extra `flower`.",
    no_args_is_help=True,
)

DEMO = Path("flower-demo")

Existing = Annotated[
    Path, typer.Argument(metavar="DIR", help="The federation's folder, made by `equifed flower init`.")
]
MethodName = Annotated[
    str | None,
    typer.Option("--method", metavar="NAME", help="A method of `equifed methods`. (default: fedavg-gr)"),
]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")]
Secure = Annotated[
    bool, typer.Option("--secure", help="Hide single replies from the server by secure sums; needs at least 3 silos.")
]
Local = Annotated[bool, typer.Option("--local", help="Start server and silos on this machine, as `demo` does.")]
Rounds = Annotated[int | None, typer.Option("--rounds", metavar="N", min=1, help="Rounds of training. (default: 5)")]


@command(flower_app)
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.")],
    silos: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Names of the silos. (default: hospital-a,hospital-b,hospital-c)"),
    ] = None,
    method: MethodName = None,
    rounds: Rounds = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="The server's address for the silos. (default: 127.0.0.1, for a trial)"),
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="N", help="The server's port. (default: 8000)")] = None,
    table: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A CSV or Parquet file with the columns of the silos' files; only its schema is kept. If repeated, "
            "the schema is the one that silos with these files agree on.",
        ),
    ] = None,
    summary: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Instead of a table: a silo's summary of its file, by `equifed data summarise`. Repeat it for each "
            "silo.",
        ),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A schema (JSON) that the silos agreed on, instead of a table.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Format of the silos' files: csv, csv.gz, parquet, arrow or feather. (default: that of --table, or "
            "parquet)",
        ),
    ] = None,
    secure: Secure = False,
    json: Json = False,
    *,
    columns: ColumnOptions,
) -> None:
    """Make the folder of a federation: the app, certificates, a key per silo, and a README with every command.

    With --table, --summary or --schema it is for your silos' own files: options about columns apply to --table, and
    the options for agreeing on a schema (--missing, --min-group, --positive, --meaning) to --summary, too. Without
    these it is a trial: COMPAS data, distributed among the silos.
    """
    from equifed.cli.flower_runs import describe, describe_threshold, list_unused, make, schema_of_options, suffix_of

    given = schema_of_options(table, summary, schema, columns)
    made = make(
        folder,
        silos=silos,
        method=method,
        rounds=rounds,
        address=address,
        port=port,
        schema=given,
        suffix=suffix_of(format, table),
        secure=secure,
    )
    if json:
        print_json(describe(made))
    else:
        show(near(made.readme))
        say("This README has every command, for the server and for each silo.")
    if (table or summary) and given is not None:
        say(f"Inputs: {', '.join(dict.fromkeys(column.name for column in given.columns))}.")
        for line in list_unused(given):
            say(f"Not used: {line}")
    if secure:
        say(describe_threshold(len(made.silos())))


@command(flower_app)
def bundle(
    folder: Existing,
    silo: Annotated[str, typer.Argument(metavar="NAME", help="The silo.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The archive to write. (default: NAME.tar.gz)")
    ] = None,
    no_key: Annotated[
        bool, typer.Option("--no-key", help="Omit the silo's private key, because it has made its own.")
    ] = False,
    json: Json = False,
) -> None:
    """Pack what one silo needs into one archive: certificate, key, commands, service, container files, configuration.

    It contains nothing from other silos or the server, and no path of this machine.
    """
    from equifed.cli.flower_runs import pack

    packed = pack(folder, silo, out, not no_key)
    if json:
        print_json({"bundle": packed.path, "silo": silo, "files": packed.files, "key": packed.key})
        return
    show(near(packed.path))
    if packed.key:
        say(f"It contains the private key of {silo}: send it over a secure channel, then remove key and archive here.")
    else:
        say(
            f"Without a private key: {silo} makes its own and sends {silo}.pub, as described in the bundle's README.md."
        )


@command(flower_app)
def roster(
    output: Annotated[Path, typer.Argument(metavar="FILE", help="The roster to write, such as roster.json.")],
    keys: Annotated[
        list[Path], typer.Argument(metavar="NAME.pub...", help="The silos' public keys, each named after its silo.")
    ],
) -> None:
    """At a silo: list the silos' public keys, so that its node need not trust the server for them.

    Get the keys from the silos directly, not through the server, and name the list in the node's configuration:
    roster="roster.json". A run with secure sums then begins only if every silo's key is signed by the key listed here.
    """
    from equifed.cli.flower_runs import write_roster

    for name, fingerprint in write_roster(output, keys):
        show(f"{name}  {fingerprint}")
    say(f"Wrote {near(output)}. Compare these with what `ssh-keygen -lf NAME.pub` prints at each silo.")


@command(flower_app)
def digest(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The app's federation.toml, as this silo has seen it.")],
    trust: Trust = None,
) -> None:
    """At a silo: print the digest of the configuration and schema that it agrees to, with its version of equifed.

    Compare it with the other silos, and name it in the node's configuration: app="...". The node then takes part only
    in runs with this configuration, whatever app the server ships. The file comes from the server, so modules that it
    names are imported only if they are trusted.
    """
    from equifed.flower.agreement import Setting
    from equifed.registry import trust as trust_modules

    trust_modules(*(trust or ()))
    setting = Setting.load(file, received=True)
    show(setting.digest)
    sums = "secure sums" if setting.secure else "NO secure sums"
    say(f"{setting.method.name}, {setting.config.run.rounds} rounds, {sums}, silos {', '.join(setting.silos)}.")


@command(flower_app)
def clock(
    server: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The server's address for the silos.")],
    authority: Annotated[Path, typer.Argument(metavar="FILE", help="The certificate of its authority: ca.crt.")],
) -> None:
    """At a silo: compare this machine's clock with the server's. Exit with 1 if Flower would refuse the node for it."""
    from equifed.flower.deployment.clock import describe_offset, seconds_ahead
    from equifed.flower.deployment.installed import require_flower

    require_flower()
    address, _, port = server.rpartition(":")
    if not address or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(f"The server {server!r} is not of the form HOST:PORT, such as federation.example.org:8000.")
    ahead = seconds_ahead(address, int(port), authority)
    if wrong := describe_offset(ahead):
        say(wrong)
        raise typer.Exit(1)
    say(f"This clock and the server's are {abs(ahead):.0f} s apart, which Flower allows.")


@command(flower_app)
def demo(
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the demo; an earlier demo's is reused.")
    ] = DEMO,
    method: MethodName = None,
    rounds: Rounds = None,
    secure: Secure = False,
    json: Json = False,
) -> None:
    """Run a real federation on this machine: a server, three silos with COMPAS data, TLS, and the report at the end.

    Takes a few minutes, mostly for Flower to start programs. All are stopped at the end, or by Ctrl-C.
    """
    from equifed.cli.flower_runs import demonstrate

    demonstrate(folder, method, rounds, secure, json)


@command(flower_app)
def run(folder: Existing, local: Local = False, json: Json = False) -> None:
    """Start a run on the federation's SuperLink and follow it to the report.

    Use it on the server's machine, with the SuperLink running as described in the folder's README. With --local all
    programs are started here, which needs every silo's rows and key, and stopped at the end, or by Ctrl-C.
    """
    from equifed.cli.flower_runs import run as start

    start(folder, local, json)


@command(flower_app)
def resume(
    folder: Existing,
    reference: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="The run. (default: the latest unfinished one)"),
    ] = None,
    local: Local = False,
    json: Json = False,
) -> None:
    """Continue an interrupted or failed run after its last completed round."""
    from equifed.cli.flower_runs import resume as go_on

    go_on(folder, reference, local, json)
