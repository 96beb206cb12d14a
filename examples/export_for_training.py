"""Export for a trainer: the solved episodes as chats, split by task, so that no task is in training and validation.

    python export_for_training.py 'env:maze outcome:success since:7d' training

Writes `training/train.jsonl` and `training/validation.jsonl` (OpenAI messages with tools, as most trainers of chats
read them); the manifest beside the export has the query, what was left out and why, and the hash of the file.
AGENTGYM_DATA_DIR names the state directory, as for every command.
"""

import json
import subprocess
import sys
from pathlib import Path
from zlib import crc32

VALIDATION_PERCENT = 20


def main(query: str, folder: Path) -> int:
    exported = folder / "exported.jsonl"
    command = ["agentgym-runner", "export", query, "--format", "messages", "--first-success", "--output", str(exported)]
    if (code := subprocess.run(command, check=False).returncode) != 0:
        return code
    with (
        exported.open(encoding="utf-8") as episodes,
        (folder / "train.jsonl").open("w", encoding="utf-8") as train,
        (folder / "validation.jsonl").open("w", encoding="utf-8") as validation,
    ):
        for line in episodes:
            episode = json.loads(line)
            task = f"{episode['env']} {episode['task_index']}"
            target = validation if crc32(task.encode()) % 100 < VALIDATION_PERCENT else train
            target.write(json.dumps({"messages": episode["messages"], "tools": episode["tools"]}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
