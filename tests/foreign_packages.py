"""Round trips through the formats' own packages, each in an environment of its own: ``make test-formats``.

    python -m tests.foreign_packages

An environment is set up below ``.venv-formats``; a package that cannot be installed is skipped, and pip's reason is
printed. A variable such as ``FORMATS_HARBOR_PYTHON`` names an interpreter that has the package already.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from runner.formats.atif import encode_atif
from runner.formats.format import Source, recognise
from runner.formats.importing import ReadEpisode, read_episodes
from runner.formats.verifiers import encode_trace
from runner.store import EpisodeRecord
from runner.store.token_file import TokenizedEpisode
from runner.types import Tokens
from runner.util.safe_values import encode
from tests.unit.formats.conftest import FILES, model_episode
from tests.unit.formats.test_training import contiguous, forked, thoughtless, values

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / ".venv-formats"
SET_UP_S: Final = 1_800

READ_ATIF: Final = """
import json, sys
from harbor.models.trajectories import Trajectory
print(json.dumps([Trajectory.model_validate_json(open(path).read()).to_json_dict() for path in sys.argv[1:]]))
"""
READ_TRACES: Final = """
import json, sys
from verifiers.v1 import WireTrace
for line, expected in zip(open(sys.argv[1]), json.loads(sys.argv[2]), strict=True):
    trace = WireTrace.model_validate_json(line)
    found = [(branch.token_ids, [int(each) for each in branch.sampled_mask]) for branch in trace.branches]
    assert json.loads(json.dumps(found)) == expected, (found, expected)
    for node in trace.nodes:
        assert len(node.mask) == len(node.token_ids) and len(node.logprobs) == sum(node.mask)
    print(trace.model_dump_json())
"""
BRANCHES: Final[tuple[list[list[list[int]]], ...]] = (
    [[[], []]],
    [[[1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1]]],
    [[[1, 2, 3, 4], [0, 0, 1, 1]], [[1, 9, 5, 6, 7, 8], [0, 0, 0, 1, 0, 1]]],
    [[[0, 1, 90, 99], [0, 0, 1, 1]], [[0, 1, 2, 91, 99], [0, 0, 0, 1, 1]], [[0, 1, 2, 3, 92, 99], [0, 0, 0, 0, 1, 1]]],
)
"""Ids and masks of each branch of each trace, as verifiers concatenates them."""
WRITE_LOG: Final = """
import json, sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate
samples = [Sample(input="Say it.", target="Default", id="yes"), Sample(input="x" * 3000, target="other", id=7)]
task = Task(dataset=samples, solver=[generate()], scorer=includes(), epochs=2, name="words")
usage = ModelUsage(input_tokens=5, output_tokens=2, total_tokens=9, input_tokens_cache_read=2)
def reply():
    output = ModelOutput.from_content("mockllm/model", "Default")
    output.usage = usage
    return output
model = get_model("mockllm/model", custom_outputs=[reply() for _ in range(4)])
[log] = eval(task, model=model, log_dir=sys.argv[1], display="none")
kept = [[str(s.id), s.epoch, s.scores["includes"].value, s.input, s.output.completion] for s in log.samples]
open(sys.argv[1] + "/samples.json", "w").write(json.dumps(kept))
"""
WRITE_TABLE: Final = """
import sys
from pathlib import Path
from runner.formats.export import new_output
from runner.formats.parquet import ParquetWriter
from tests.unit.formats.conftest import model_episode, read_all
with new_output(Path(sys.argv[1]), is_folder=False) as output:
    writer = ParquetWriter(output.create())
    writer.write(model_episode())
    writer.finish()
(found,), malformed = read_all(Path(sys.argv[1]))
import pyarrow.parquet
table = pyarrow.parquet.read_table(sys.argv[1])
assert not malformed and table.num_rows == found.record.rounds == 2
assert table.column("reward").to_pylist() == [step.reward for step in found.record.timesteps]
"""


class Package(NamedTuple):
    """A package, the arguments of each call of pip that installs it, and its check."""

    name: str
    requirements: tuple[str, ...]
    check: Callable[[str, Path], None]


class NotInstalled(Exception):
    """A package cannot be installed; the message is pip's reason."""


def main() -> int:
    """Check every package; return 1 if a check fails."""
    failed = [package for package in PACKAGES if not _passes(package)]
    return 1 if failed else 0


def _passes(package: Package) -> bool:
    try:
        python = interpreter(package.name, *package.requirements)
    except NotInstalled as exc:
        _say(f"{package.name}: SKIPPED, it cannot be installed: {exc}")
        return True
    with tempfile.TemporaryDirectory() as folder:
        try:
            package.check(python, Path(folder))
        except (AssertionError, subprocess.SubprocessError) as exc:
            _say(f"{package.name}: FAILED: {exc!r} {getattr(exc, 'stderr', '') or ''}"[:3_000])
            return False
    _say(f"{package.name}: ok")
    return True


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def interpreter(name: str, *requirements: str) -> str:
    """Return the interpreter of a package's environment, which is set up once; raises ``NotInstalled``."""
    if given := os.environ.get(f"FORMATS_{name.upper()}_PYTHON"):
        return given
    folder = FOLDER / name
    python, stamp = folder / "bin" / "python", folder / ".installed"
    if not stamp.exists():
        _say(f"{name}: setting up {folder}")
        try:
            venv.create(folder, with_pip=True, clear=True)
            for requirement in requirements:
                _run([str(python), "-m", "pip", "install", "-q", *requirement.split()], SET_UP_S)
        except (subprocess.SubprocessError, OSError) as exc:
            raise NotInstalled(_last_line(exc)) from exc
        stamp.touch()
    return str(python)


def _last_line(exc: Exception) -> str:
    """Return the end of what a command printed; a command that took too long has it as bytes."""
    printed = getattr(exc, "stderr", None) or str(exc)
    text = printed.decode("utf-8", "replace") if isinstance(printed, bytes) else str(printed)
    return text.strip().rpartition("\n")[2][:500]


def _run(command: list[str], timeout_s: float = 120, **environ: str) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, timeout=timeout_s, check=True
    )
    return done.stdout


def read(path: Path) -> list[ReadEpisode]:
    found = list(read_episodes(Source(path, recognise(path))))
    assert all(isinstance(each, ReadEpisode) for each in found), found
    return [each for each in found if isinstance(each, ReadEpisode)]


def check_harbor(python: str, folder: Path) -> None:
    """Harbor reads our trajectories, one with tokens, and one that was imported, and each is what it was."""
    (found, *_) = read(FILES / "atif_v17.json")
    paths = [folder / "own.json", folder / "tokens.json", folder / "again.json"]
    for path, episode in zip(paths, (model_episode(), counted(contiguous()), found.record), strict=True):
        path.write_bytes(encode(encode_atif(episode)))
    read_back = json.loads(_run([python, "-c", READ_ATIF, *map(str, paths)]))
    assert read_back == [json.loads(path.read_bytes()) for path in paths]
    paths[1].write_text(json.dumps(read_back[1]))
    check_tokens(paths[1], counted(contiguous()))


def check_verifiers(python: str, folder: Path) -> None:
    """``WireTrace`` reads our traces and finds the tokens of each branch; what it writes is the same episode."""
    episodes = (model_episode(), counted(contiguous()), counted(forked()), counted(thoughtless()))
    path = folder / "traces.jsonl"
    path.write_bytes(b"".join(encode(encode_trace(episode)) + b"\n" for episode in episodes))
    written = _run([python, "-c", READ_TRACES, str(path), json.dumps(BRANCHES)])
    for episode, line in zip(episodes, written.splitlines(), strict=True):
        path.write_text(line)
        (found,) = read(path)
        assert facts(found.record) == facts(episode)
    for episode, line in zip(episodes[1:], written.splitlines()[1:], strict=True):
        path.write_text(line)
        check_tokens(path, episode)


def counted(episode: EpisodeRecord) -> EpisodeRecord:
    """Return the episode with the number of tokens that the ids of its first step have."""
    episode.timesteps[0].tokens = Tokens(2, 2)
    episode.tokens = Tokens(2, 2)
    return episode


def check_tokens(path: Path, episode: EpisodeRecord) -> None:
    """A file has the labels, ids, log-probabilities, masks and problems of an episode."""
    (found,) = read(path)
    assert values(found.record) == values(episode)
    assert masks(found.record) == masks(episode)


def masks(record: EpisodeRecord) -> list[list[list[int]]]:
    assert isinstance(record, TokenizedEpisode)
    return [sorted(each.loss_mask for each in step) for step in (*record.sequences, record.unfinished)]


def facts(record: EpisodeRecord) -> list[Any]:
    steps = [(step.action, step.observation, step.reward, step.tokens) for step in record.timesteps]
    return [record.env, record.task_index, record.outcome, record.reward, record.tokens, record.started_at, steps]


def check_inspect(python: str, folder: Path) -> None:
    """A log that Inspect has written has the samples that Inspect reads, with their grades and messages."""
    _run([python, "-c", WRITE_LOG, str(folder)])
    site = _run([python, "-c", "import zstandard; print(zstandard.__path__[0])"]).strip()
    sys.path.append(str(Path(site).parent))  # zstandard alone is used from there
    (log,) = folder.glob("*.eval")
    expected = json.loads((folder / "samples.json").read_text())
    found = {(each.record.task_index, each.record.attempt + 1): each.record for each in read(log)}
    assert len(found) == len(expected) == 4
    for id, epoch, grade, text, reply in expected:
        index = next(record.task_index for record in found.values() if (record.task_index == 7) == (id == "7"))
        record = found[index, epoch]
        assert (record.reward, record.success) == ({"C": 1.0, "I": 0.0}[grade], grade == "C")
        assert record.reset_observation == [{"role": "user", "content": text}]
        assert record.timesteps[0].action.text == reply
        assert record.timesteps[0].tokens == Tokens(7, 2, 0, 2)


def check_pyarrow(python: str, folder: Path) -> None:
    """Our table is what pyarrow reads, and hostile ones are refused.

    The libraries of this environment come after those of the package.
    """
    site = _run([python, "-c", "import pyarrow, os; print(os.path.dirname(pyarrow.__path__[0]))"]).strip()
    path = f"{ROOT}:{site}"
    _run([sys.executable, "-c", WRITE_TABLE, str(folder / "episodes.parquet")], PYTHONPATH=path)
    hostile = ROOT / "tests" / "unit" / "formats" / "test_parquet_tables.py"
    _run([sys.executable, "-m", "pytest", "-q", "-n0", str(hostile)], SET_UP_S, PYTHONPATH=path)


PACKAGES: Final = (
    # The package demands Python 3.12; its models of trajectories need only pydantic, and run on older ones.
    Package("harbor", ("--no-deps --ignore-requires-python harbor==0.25.0", "pydantic"), check_harbor),
    Package("verifiers", ("verifiers==0.4.0",), check_verifiers),
    Package("inspect", ("inspect-ai==0.3.285 zstandard",), check_inspect),
    Package("pyarrow", ("pyarrow>=18",), check_pyarrow),
)

if __name__ == "__main__":
    sys.exit(main())
