"""``make golden`` records anew what has changed on purpose; the difference is read before it is committed."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden.player import record_all

FOLDER = Path(__file__).parent / "recordings"


def main() -> None:
    with TemporaryDirectory() as folder:
        recordings = record_all(Path(folder))
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, lines in recordings.items():
        path = FOLDER / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")


if __name__ == "__main__":
    main()
