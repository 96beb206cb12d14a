"""The fixed set of episodes, and every edge at which they are seen, byte by byte: files, events, exports and commands.

Each environment is played by the agent ``random`` with the seed 0, for three rounds; the other episodes are written as
their recorder does: one of each outcome, one that a fallback answered, a fork, an unscored one and one of ARE, and one
with token ids. Their times are fixed, so their numbers are recorded, too. What a command shows about this machine is
recorded without the values.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from runner.cli import main
from runner.config import NatsSettings
from runner.errors import ConfigError
from runner.events.codec import headers_for
from runner.events.subjects import DurableNames
from runner.formats.export import export_episodes
from runner.formats.format import find_format, writable_formats
from runner.formats.html_page.page import page_data
from runner.formats.parquet import rows_of
from runner.formats.selection import Filters, select_candidates
from runner.publish.outbox import LOCAL, Outbox
from runner.store import EpisodeStore, open_index
from runner.store.token_file import TOKENS_SUFFIX, TokenizedEpisode
from runner.types import Limits, Outcome, Tokens
from runner.types.sequences import TokenSequence
from runner.util.safe_values import encode
from tests.golden.bus import header_lines, record_bus
from tests.golden.normalise import Normaliser
from tests.golden.samples import encoded_samples
from tests.golden.scene import write_profile
from tests.support.are_episodes import DETAILS, IDLE, are_record, store_records
from tests.support.batches import resolved_batch
from tests.support.episodes import END, RecordedEpisode, make_step
from tests.support.node_process import clean_environ

ENVS = ("BabyAI", "TextCraft", "Maze", "Wordle", "ALFWorld", "SQLGym", "WebShop")
COMMANDS = {
    "results": ["--results", "--json", "--matrix"],
    "results_agentgym": ["--results", "--json", "--score", "agentgym", "--env", "Maze"],
    "episodes": ["episodes", "--json"],
    "hits": ["episodes", "--json", "--hits", "text:observation", "--limit", "3"],
    "clusters": ["clusters", "--json"],
    "compare": ["compare", "--json", "{first}", "{second}"],
    "audit": ["export", "--audit", "--json"],
    "export": ["export", "--format", "agenttraj", "--output", "{folder}/exported", "outcome:success", "--json"],
    "tag": ["tag", "{first}", "seen", "--json"],
    "prune": ["prune", "--older", "1h", "--undelivered", "--dry-run", "--json"],
    "outbox": ["outbox", "--json"],
    "eval_report": ["eval-report", "--format", "json"],
    "tasks": ["tasks", "BabyAI", "1804", "3", "--json"],
}
"""Commands with JSON output that read the episodes; ``{first}`` and ``{second}`` are ids of two of them."""
NOW = {"export", "import", "tag"}
"""Commands whose output has the present time."""
RUNS = {
    "battery": ["--battery", "lightweight", "--agent", "oracle", "--json"],
    "run": ["--run", "Maze", "--agent", "oracle", "--tasks", "24,3", "--json"],
    "dry_run": ["--run", "Maze", "--agent", "oracle", "--dry-run", "--json"],
}
MACHINE = {"list_envs": ["--list-envs", "--json"], "preflight": ["preflight", "--json", "--agent", "random"]}
"""Commands whose JSON depends on the machine."""
PLAY = """
import json, sys
from runner.cli import main
from runner.cli.terminal import output_stream
for words in json.loads(sys.argv[1]):
    main(words)
    print(end="\\0", file=output_stream(), flush=True)
"""
_VALUE = re.compile(r': (?:"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null)')
_TEXTS = re.compile(r'\[\s*"[^\[\]{}]*\]|\[\]')
PARQUET, HTML = "parquet", "html"
"""The format that needs a package of an extra; its columns do not."""
IMPORTED = ("atif", "messages", "verifiers", "agenttraj")


def record_all(folder: Path) -> dict[str, list[str]]:
    """Play everything in an empty folder; return the lines of each recording by its name."""
    data = folder / "data"
    recordings = {f"environments/{env}": play(env, folder / env) for env in ENVS}
    recordings["journal"] = _fixed(folder).lines([write_episodes(data)])
    files = sorted((data / "runs").glob("*/*.json"))
    recordings["episodes"] = _fixed(folder).lines(path.read_bytes() for path in files)
    recordings["durable"] = _fixed(folder).lines(durable_events(data))
    recordings["tokens"] = _fixed(folder).lines(token_ids(folder / "tokens"))
    recordings["samples"] = _fixed(folder).lines(encoded_samples())
    recordings |= dict(exports(data, folder)) | record_bus(folder)
    recordings |= {f"imports/{name}": imports(folder, name) for name in IMPORTED}
    recordings |= {f"commands/{name}": command(arguments, data, folder) for name, arguments in COMMANDS.items()}
    profile = write_profile(folder / "runs.yaml", "http://127.0.0.1:1")
    options = ["--node", "golden", "--config", str(profile)]
    runs = {name: [*words, *options, "--data-dir", str(folder / f"run-{name}")] for name, words in RUNS.items()}
    machine = {name: [*words, *options[2:], "--data-dir", str(folder / "empty")] for name, words in MACHINE.items()}
    for name, text in printed(runs | machine).items():
        shown = _without_values(text) if name in MACHINE else text
        recordings[f"commands/{name}"] = Normaliser(folder).lines([shown])
    recordings["battery"] = Normaliser(folder).lines(durable_events(folder / "run-battery"))
    return recordings


def _fixed(folder: Path) -> Normaliser:
    """Return what normalises the episodes with fixed times."""
    return Normaliser(folder, measured=False)


def play(env: str, folder: Path) -> list[str]:
    """Return the file of an episode in an environment."""
    with closing(Workspace(folder, node="node", profile="golden")) as workspace:
        batch = resolved_batch(env=env, agent="random", limits=Limits(max_rounds=3), mode="compat", tracing="off")
        assert Batch(batch, workspace).run().problems == []
    (path,) = (folder / "runs").glob("*/*.json")
    return Normaliser(folder).lines([path.read_bytes()])


def ids(number: int) -> dict[str, Any]:
    """Return the ids of an episode and its batch, in the order of the numbers."""
    return {"episode_id": f"01K000000000000000000E{number:04}", "batch_id": f"01K000000000000000000B{number:04}"}


def write_episodes(data: Path) -> bytes:
    """Write the other episodes; return a journal just before the end of its episode."""
    store = EpisodeStore(data)
    answered: dict[str, Any] = {"endpoint": "gateway", "model": "m"}
    with closing(open_index(store)) as index:
        for number, outcome in enumerate(Outcome):
            fields: dict[str, Any] = {"env": "Maze", "agent": "react", "model": "m", "task_index": number}
            recording = RecordedEpisode(store, index, **fields, **ids(number))
            recording.start()
            recording.reset()
            reward = float(outcome is Outcome.SUCCESS)
            recording.play(make_step(0, reward=0.0, tokens=Tokens(10, 5, 2, 1), cost=0.5, **answered))
            recording.play(make_step(1, reward=reward, done=True, tokens=Tokens(20, 6), **answered))
            recording.end(outcome=outcome, success=outcome is Outcome.SUCCESS)
        fallback = RecordedEpisode(store, index, env="Wordle", agent="tools", model="m", mode="compat", **ids(20))
        fallback.start()
        fallback.reset()
        fallback.play(make_step(0, endpoint="ollama", model="small", warnings=("gateway: HTTP 500",)))
        fallback.end(outcome=Outcome.FAILURE, success=False)
        for number, evaluation in enumerate((DETAILS, IDLE), start=21):
            store.create_batch_folder(ids(number)["batch_id"])
            store_records(index, store, are_record(evaluation, **ids(number)))
        parent = {"episode_id": fallback.header.episode_id, "step": 1}
        fork = RecordedEpisode(store, index, env="Maze", agent="oracle", parent=parent, **ids(30))
        fork.start()
        fork.reset()
        fork.play(make_step(0, done=True))
        journal = fork.journal.read_bytes()
        fork.end()
    return journal


def token_ids(data: Path) -> Iterator[bytes]:
    """Play an episode with token ids; yield its token file in hexadecimal digits, and what is read from it."""
    store = EpisodeStore(data)
    ids_of: dict[str, Any] = {"prompt_ids": [1, 2], "completion_ids": [3], "logprobs": [-0.25], "endpoint": "gateway"}
    with closing(open_index(store)) as index:
        episode = RecordedEpisode(store, index, env="Maze", agent="react", model="m", **ids(40))
        episode.start()
        episode.reset()
        for number in range(2):
            episode.reporter.on_sequence(TokenSequence(label="discarded" if number else "agent", **ids_of))
            episode.play(make_step(number))
        episode.end()
    (file,) = episode.file.parent.glob(f"*{TOKENS_SUFFIX}")
    yield file.read_bytes().hex().encode()
    found = store.load_with_tokens(episode.file)
    assert isinstance(found, TokenizedEpisode)
    yield msgspec.json.encode({"sequences": found.sequences, "unfinished": found.unfinished, "lost": found.lost})


def imports(folder: Path, name: str) -> list[str]:
    """Return the report of an import of our own export, and the rows of its episodes."""
    data = folder / f"import-{name}"
    report = command(["import", str(folder / f"export-{name}"), "--json"], data, folder)
    return [*report, *command(["episodes", "--json"], data, folder, measured=True)]


def printed(commands: dict[str, list[str]]) -> dict[str, str]:
    """Return what commands print that keep standard output for themselves, played in one process of their own."""
    words = [sys.executable, "-c", PLAY, json.dumps([*commands.values()])]
    texts = subprocess.run(words, env=clean_environ(), capture_output=True, text=True, check=True).stdout
    return dict(zip(commands, texts.split("\0"), strict=False))


def _without_values(text: str) -> str:
    """Return JSON without its texts and numbers: names, nesting and spaces."""
    return _TEXTS.sub("[…]", _VALUE.sub(": …", text))


def durable_events(data: Path) -> Iterator[bytes]:
    """Yield subject, headers and payload of each event that waits for a broker."""
    with closing(open_index(EpisodeStore(data))) as index:
        for event in Outbox(index, DurableNames.of(NatsSettings())).pending(LOCAL, 100):
            headers = headers_for(event.type, event.id, event.source, event.time)
            yield f"{event.subject}\n{header_lines(headers)}".encode() + event.payload


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def exports(data: Path, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the files of each format that is written without further packages."""
    store = EpisodeStore(data)
    episodes = [store.load_with_tokens(path) for path in sorted((data / "runs").glob("*/*.json"))]
    yield f"exports/{PARQUET}", _fixed(folder).lines(encode(_columns(rows_of(each))) for each in episodes)
    yield f"exports/{HTML}", _fixed(folder).lines(encode(page_data(each)) for each in episodes)
    for name in sorted(writable_formats().keys() - {PARQUET, HTML}):
        target, path = find_format(name), folder / f"export-{name}"
        with closing(open_index(store)) as index:
            candidates, left_out = select_candidates(index, "TRUE", {}, Filters(), by_task=target.by_task)
        with contextlib.suppress(ConfigError):
            export_episodes(store, candidates, left_out, target, path, query="", filters=[], now=END)
        normaliser, lines = _fixed(folder), list[str]()
        for file in sorted([path, *path.rglob("*"), *folder.glob(f"export-{name}.*")]):
            if file.is_file():
                lines += [
                    f"== {normaliser.text(str(file.relative_to(folder)))}",
                    *normaliser.lines([file.read_bytes()]),
                ]
        yield f"exports/{name}", lines


class _Stream(io.StringIO):
    encoding = "utf-8"


def command(arguments: list[str], data: Path, folder: Path, *, measured: bool = False) -> list[str]:
    """Return the exit code of a command that reads the episodes, and what it prints on standard output."""
    first, second = (ids(number)["episode_id"] for number in range(2))
    places = {"first": first, "second": second, "folder": folder}
    words = [each.format(**places) for each in arguments]
    with contextlib.redirect_stdout(_Stream()) as output, contextlib.redirect_stderr(_Stream()):
        code = main([*words, *([] if words[0] == "tasks" else ["--data-dir", str(data)])])
    normaliser = Normaliser(folder, measured=measured or words[0] in NOW)
    return [f"exit code {code}", *normaliser.lines([output.getvalue()])]
