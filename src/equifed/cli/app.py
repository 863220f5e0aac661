"""The commands. Each is a few lines here; the work is in the modules they import when they are called."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from equifed.cli.console import print_json, say, show
from equifed.cli.flower import flower_app
from equifed.cli.monitor import monitor_app
from equifed.cli.options import (
    MARGIN,
    AgreementOptions,
    ColumnOptions,
    FailIf,
    Goal,
    Margin,
    Output,
    ReportOptions,
    Settings,
    Sharing,
    SummaryOptions,
    TableOptions,
    Tracking,
    Trust,
    Which,
    command,
    keyed,
    naming_options,
)
from equifed.cli.plugins import Commands
from equifed.data.columns import Columns
from equifed.settings import SeekSettings

EXITS = (
    "Exit codes: 0 fine, 1 a --fail-if check failed, 2 wrong usage or configuration, 3 data, 4 the run failed, "
    "130 interrupted, 143 and 129 ended by SIGTERM and SIGHUP."
)

app = typer.Typer(
    cls=Commands,
    help="Fair federated learning: compare methods, train them, and see how fair, for whom and at what cost.",
    epilog=EXITS,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(
    help="Data sets, and your own tables: list, look at and fetch data sets; describe, check and summarise files.",
    no_args_is_help=True,
)
app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")
app.add_typer(monitor_app, name="monitor")

RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help='A run: its id, the beginning of it, its name, its folder, or "latest".'),
]
ModelName = Annotated[
    str,
    typer.Argument(metavar="RUN", help='A finished run, as for "show", or the folder `model` of one, wherever it is.'),
]
Watch = Annotated[
    bool,
    typer.Option("--watch", help="Show more: a table that is refreshed, or without a terminal a line per evaluation."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
DatasetName = Annotated[str, typer.Argument(metavar="DATASET", help="A data set of `equifed data list`.")]
MaybeDataset = Annotated[
    str | None,
    typer.Argument(metavar="[DATASET]", help="A data set of `equifed data list`; or give --data.", show_default=False),
]


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"equifed {version('equifed')}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@command(app)
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The configuration.")],
    set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Change a value of the file, e.g. --set run.rounds=20. May be repeated."
        ),
    ] = None,
    fail_if: FailIf = None,
    watch: Watch = False,
    trust: Trust = None,
    *,
    goal: Goal,
    tracking: Tracking,
    sharing: Sharing,
    tables: TableOptions,
    output: Output,
) -> None:
    """Train what a configuration file describes: a run, a sweep if the file has a [sweep] section, or as many as it
    takes to meet a target if it has a [seek] section.

    It is saved in a folder of its own, with a checkpoint after every round; `equifed resume` continues it where it
    stopped. Options about data take the place of what the file says; --data, of its data set or files.
    """
    from equifed.cli.checks import parse_checks
    from equifed.cli.runs import new_run
    from equifed.cli.seek import seek
    from equifed.config import load_config
    from equifed.registry import trust as trust_modules
    from equifed.store import RunFolder

    trust_modules(*(trust or ()))
    overrides, checks = [*(set or ()), *goal.overrides, *keyed(tracking), *keyed(sharing)], parse_checks(fail_if)
    config = load_config(file, overrides, data=tables.section(Path.cwd()), received=RunFolder.holds(file))
    if config.seek is None:
        new_run(config, output, checks, watch)
    else:
        seek(config, output, checks, closely=watch)


@command(app)
def compare(
    name: MaybeDataset = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", help="Methods of `equifed methods`. (default: all that can run)", show_default=False
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The report to write. (default: in the runs' folder)", show_default=False),
    ] = None,
    margin: Margin = MARGIN,
    fail_if: FailIf = None,
    *,
    tables: TableOptions,
    settings: Settings,
    output: Output,
) -> None:
    """Compare methods on a data set or your own files: a table with accuracy, fairness and cost, a verdict, a report.

    All methods get the same clients, splits and initial models. Every method is a run of its own.
    """
    from equifed.cli.checks import parse_checks
    from equifed.cli.runs import compare as compare_methods

    with naming_options():
        compare_methods(tables.of(name), methods, settings, report, output, parse_checks(fail_if), margin)


@command(app)
def sweep(
    name: MaybeDataset = None,
    *,
    method: Annotated[str, typer.Option(help="The method whose hyperparameters are swept.")],
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=V1,V2,...",
            help="A hyperparameter and its values; repeat it for all combinations. Default: the method's fairness "
            "weight is searched until the --target is met.",
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report to this file.")] = None,
    margin: Margin = MARGIN,
    fail_if: FailIf = None,
    tables: TableOptions,
    seek: SeekSettings,
    settings: Settings,
    output: Output,
) -> None:
    """Train a method with many hyperparameter values in one computation, and show the trade-off and a verdict.

    A setting is dominated when another has both better accuracy and better fairness. With a --target and without
    --over, the method's fairness weight is searched on validation rows, in few steps of several values each. Every step
    is a run; the same command goes on where it was interrupted.
    """
    from equifed.cli.checks import parse_checks
    from equifed.cli.runs import new_run
    from equifed.cli.seek import seek as seek_target
    from equifed.config import parse_config
    from equifed.errors import ConfigError

    if not over and not settings.target:
        raise ConfigError(
            "Which values? Give --over NAME=V1,V2,..., or a --target 'METRIC <= NUMBER' for which they are searched."
        )
    with naming_options():
        raw: dict[str, Any] = {"data": tables.of(name), "method": {"name": method}}
        if over:
            raw["sweep"] = _swept(over)
        else:
            raw["seek"] = {"steps": seek.steps, "at-once": seek.at_once}
        config, checks = parse_config(raw, settings.overrides(method), source="sweep"), parse_checks(fail_if)
        if over:
            new_run(config, output, checks, margin=margin, report=report, again=True)
        else:
            seek_target(config, output, checks, report)


def _swept(over: list[str]) -> dict[str, list[float]]:
    """Hyperparameters and their values, from texts NAME=V1,V2,..."""
    from equifed.errors import ConfigError

    swept: dict[str, list[float]] = {}
    for text in over:
        name, _, values = text.partition("=")
        name = name.strip().replace("_", "-")
        if name in swept:
            raise ConfigError(f"--over names {name} twice; give all its values at once: --over {name}=V1,V2,...")
        try:
            numbers = [int(value) if value.strip().isdigit() else float(value) for value in values.split(",")]
        except ValueError:
            numbers = []
        if not name or not numbers:
            raise ConfigError(
                f"--over {text!r} is not of the form NAME=V1,V2,... with numbers, e.g. --over mu=0,0.1,1."
            )
        swept[name] = numbers
    return swept


@command(app)
def resume(
    reference: RunName,
    fail_if: FailIf = None,
    watch: Watch = False,
    trust: Trust = None,
    *,
    tracking: Tracking,
    output: Output,
) -> None:
    """Continue a run that was interrupted or killed.

    The result has the same bits as that of a run that was never stopped. Checks are not part of a run: give them again.
    """
    from equifed.cli.checks import parse_checks
    from equifed.cli.runs import resume_run
    from equifed.registry import trust as trust_modules

    trust_modules(*(trust or ()))
    resume_run(reference, output, parse_checks(fail_if), watch, tracking.track)


@command(app, "list")
def list_runs(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many to show.")] = 20,
    *,
    output: Output,
) -> None:
    """List the runs, newest first."""
    from equifed.cli.tables import runs_table
    from equifed.store import Store, read_entries

    store = Store(output.runs)
    folders = store.folders()
    entries = list(islice(read_entries(folders), limit))
    if output.json:
        print_json([entry._asdict() for entry in entries])
    elif not entries:
        say(f"There are no runs in {store.root}. Start one with `equifed run` or `equifed compare`.")
    else:
        show(runs_table(entries))
        if len(folders) > limit:
            say(f"{len(folders) - limit} more; see them with -n {len(folders)}.")


@command(app, "show")
def show_run(
    reference: RunName,
    fail_if: FailIf = None,
    *,
    goal: Goal,
    output: Output,
) -> None:
    """Show a run: its state, metrics, groups, messages and settings."""
    from equifed.cli.checks import parse_checks
    from equifed.cli.runs import show_run as print_run

    print_run(reference, goal, output, parse_checks(fail_if))


@command(app)
def report(
    references: Annotated[list[str], typer.Argument(metavar="RUN...", help='Finished runs, as for "show".')],
    trust: Trust = None,
    *,
    options: ReportOptions,
    goal: Goal,
    output: Output,
) -> None:
    """Write one self-contained HTML page about one run, a comparison or a sweep.

    --json and --csv print its numbers for other programs, and --table its comparison for a paper; then no page is
    written unless --output names one. --figures draws its charts.
    """
    from equifed.cli.report import report
    from equifed.registry import trust as trust_modules

    trust_modules(*(trust or ()))
    report(references, options, goal, output)


@command(app)
def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One method, in full.")] = None,
    json: Json = False,
) -> None:
    """List the methods: what each needs and what it reveals. With a NAME: its equations and hyperparameters."""
    from equifed.cli.describe import describe_method, hyper_table, knob_text, methods_table, phases_table
    from equifed.methods import REGISTRY, WRAPPERS

    if not name:
        described = [describe_method(known) for known in REGISTRY.usable()]
        suffixes = f"Wrappers around them, by suffix: {', '.join(WRAPPERS)}; they compose, as in fedavg@adam+fair."
        print_json(described) if json else show(methods_table(described), f"\n{suffixes}")
        return
    method = describe_method(name)
    if json:
        print_json(method)
        return
    needs = ", ".join(method["needs"]) or "nothing besides the clients' rows"
    weights = " and ".join(method["vanishes"])
    parent = f"; with {weights} 0 it is {method['parent']}" if method["parent"] else ""
    show(f"{method['name']}: {method['summary']}\n", method["equations"], f"\nNeeds: {needs}{parent}\n")
    show(phases_table(method), "", hyper_table(method) if method["hyper_parameters"] else "No hyperparameters.")
    if method["knob"]:
        show("", knob_text(method["knob"]))
    if method["bibtex"]:
        show(f"\n{method['bibtex']}")


@command(data_app, "list")
def data_list(json: Json = False) -> None:
    """List the data sets."""
    from equifed.cli.tables import plain_table
    from equifed.data import DATASETS

    datasets = {name: dataset.describe() | {"name": name} for name, dataset in DATASETS.usable().items()}
    if json:
        print_json(list(datasets.values()))
        return
    table = plain_table("data set", "what", "presets", "files")
    for name, facts in datasets.items():
        missing = [file for file, place in facts["files"].items() if place == "not here"]
        table.add_row(name, facts["title"], ", ".join(facts["presets"]), "to fetch" if missing else "here")
    show(table)


@command(data_app, "describe")
def data_describe(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="DATASET|FILE...",
            help="A data set of `equifed data list`, or your own files or a folder of them.",
        ),
    ],
    json: Json = False,
    *,
    columns: ColumnOptions,
) -> None:
    """Describe a data set: where it comes from, its presets, its files. Or your own files: columns, kinds, missing
    values, labels and groups, what would be an input, and what would not and why.

    Your own files are described to you with exact counts: do not hand them on. `equifed data summarise` makes what may
    be.
    """
    from equifed.cli.describe import outcomes, presets_table
    from equifed.cli.own import describe
    from equifed.data import DATASETS, get_dataset
    from equifed.errors import ConfigError
    from equifed.federation.reading import SUFFIXES
    from equifed.registry import allow

    name = names[0]
    allow(name)
    if len(names) > 1 or (name not in DATASETS and (Path(name).exists() or name.endswith(SUFFIXES) or "," in name)):
        describe(names, Columns(**columns.given), json)
        return
    if columns.given:
        raise ConfigError("Options about columns belong to your own files, not to a data set.")
    about = get_dataset(name).describe()
    if json:
        print_json(about)
        return
    show(f"{about['name']}: {about['title']}\n{about['description']}\n", presets_table(about))
    show(*outcomes(about), "", *(f"{file}: {place}" for file, place in about["files"].items()))
    show(f"Citation: {about['citation']}", f"License: {about['license']}")


@command(data_app, "fetch")
def data_fetch(name: DatasetName, json: Json = False) -> None:
    """Fetch a data set's files into the data home ($EQUIFED_DATA) and check them."""
    from equifed.data import data_home, get_dataset

    dataset = get_dataset(name)
    dataset.fetch()
    files = dataset.describe()["files"]
    if json:
        print_json({"name": name, "files": files})
    else:
        show(*(f"{file}: {place}" for file, place in files.items()))
        say(f"Data home: {data_home()}")


OwnFiles = Annotated[list[str], typer.Argument(metavar="FILE...", help="Your own files, or a folder of them.")]


@command(data_app, "check")
def data_check(
    files: OwnFiles,
    schema: Annotated[Path, typer.Option(metavar="FILE", help="The schema that all silos share.")],
    json: Json = False,
) -> None:
    """Say what each file lacks to be used with a schema, all of it at once. Exit code 3 if one does not fit."""
    from equifed.cli.own import check

    check(files, schema, json)


@command(data_app, "summarise")
def data_summarise(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A silo's table.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write it. (default: stdout)")] = None,
    *,
    columns: SummaryOptions,
) -> None:
    """At a silo: write what may be told of its table, so that all can agree on a schema. Give the same options at every
    silo.

    It lists what at least --min-count rows have in common, and nothing of fewer: no name, identifier, rare category or
    single value.
    """
    from equifed.cli.own import summarise_file

    with naming_options():
        summarise_file(file, Columns(**columns.given), out)


@command(data_app, "agree")
def data_agree(
    files: Annotated[list[Path], typer.Argument(metavar="SUMMARY...", help="Of `equifed data summarise`.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write it. (default: stdout)")] = None,
    *,
    columns: AgreementOptions,
) -> None:
    """Make the schema that all silos share, from their summaries."""
    from equifed.cli.own import agree_on

    with naming_options():
        agree_on(files, Columns(**columns.given), out)


@command(app)
def predict(
    reference: ModelName,
    file: Annotated[
        Path, typer.Argument(metavar="ROWS", help="A table of rows without label, in a file as silos have them.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where to write: .csv or .parquet. (default: CSV on stdout)", show_default=False
        ),
    ] = None,
    id: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column that names a row, in place of its number.")
    ] = None,
    keep: Annotated[str | None, typer.Option(metavar="A,B,...", help="Columns to copy into what is written.")] = None,
    draw: Annotated[
        int, typer.Option(metavar="N", min=0, help="Another number draws other decisions, where they are drawn.")
    ] = 0,
    trust: Trust = None,
    *,
    which: Which,
    output: Output,
) -> None:
    """Score rows with a finished run's model: the probability of each class, and the decision.

    The table needs the columns that the model was trained with, in any order; others are ignored. It needs the
    sensitive ones only where the method decides by a row's group.
    """
    from equifed.cli.model import predict
    from equifed.registry import trust as trust_modules

    trust_modules(*(trust or ()))
    predict(reference, file, out, id, keep, draw, which, output)


@command(app)
def export(
    reference: ModelName,
    onnx: Annotated[
        Path | None,
        typer.Option(metavar="FILE.onnx", help="An ONNX graph that takes a table's columns (needs the extra `onnx`)."),
    ] = None,
    torch: Annotated[
        Path | None,
        typer.Option(metavar="FILE.pt2", help="A program of torch.export that takes encoded rows."),
    ] = None,
    trust: Trust = None,
    *,
    which: Which,
    output: Output,
) -> None:
    """Write a finished run's model as a program for other software, compared with the model before it is written."""
    from equifed.cli.model import export
    from equifed.registry import trust as trust_modules

    trust_modules(*(trust or ()))
    export(reference, onnx, torch, which, output)
