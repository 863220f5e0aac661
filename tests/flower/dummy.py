"""A stand-in for the real app: it asks every silo who it is, and writes a simulated run where the real one would."""

import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client = ClientApp()
server = ServerApp()


@client.query()
def answer(message: Message, context: Context) -> Message:
    Path(str(context.node_config["state"])).mkdir(exist_ok=True)
    return Message(RecordDict({"who": ConfigRecord({"id": context.node_config["client-id"]})}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    from equifed.config import build, load_config
    from equifed.store import Recording, RunFolder, Store

    runs, run = Path(str(context.run_config["runs"])), str(context.run_config["run"])
    config = load_config(runs.parent / "app" / "federation.toml")
    store = Store(runs)
    store.prepare()
    if (runs / run).exists():
        recording = store.resume(run)
    else:
        simulation = build(config)
        recording = Recording(RunFolder.create(runs / run, config, simulation), config, simulation)
    with recording:
        while len(nodes := list(grid.get_node_ids())) < len(config.paths()):
            time.sleep(0.5)
        for step in recording.rounds():
            ask = [Message(RecordDict({"x": ConfigRecord({})}), node, "query") for node in nodes]
            replies = list(grid.send_and_receive(ask, timeout=60))
            print(
                "round", step.round, "heard", sorted(str(reply.content["who"]["id"]) for reply in replies), flush=True
            )
        recording.finish()
