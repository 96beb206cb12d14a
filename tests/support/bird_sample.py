"""A folder with BIRD's layout and one small database, the same as on the recorded server."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

TABLES: dict[str, Any] = {
    "db_id": "shop",
    "table_names": ["customers", "orders"],
    "table_names_original": ["Customers", "orders"],
    "column_names": [*([-1, "*"], [0, "id"], [0, "name"], [0, "city"]), *([1, "id"], [1, "customer id"], [1, "total"])],
    "column_names_original": [
        *([-1, "*"], [0, "id"], [0, "name"], [0, "city"]),
        *([1, "id"], [1, "customer_id"], [1, "total"]),
    ],
    "column_types": ["text", "integer", "text", "text", "integer", "integer", "integer"],
    "primary_keys": [1, 4],
    "foreign_keys": [[5, 1]],
}
GOLD = "SELECT COUNT(*) FROM customers WHERE city='Rome'"
TASK = {"db_id": "shop", "question": "How many customers live in Rome?", "SQL": GOLD, "evidence": ""}


def write_bird(folder: Path, splits: tuple[str, ...] = ("train", "dev"), gold: str = GOLD) -> Path:
    """Write splits with one task each; return the folder."""
    for split in splits:
        database = folder / split / f"{split}_databases" / "shop" / "shop.sqlite"
        database.parent.mkdir(parents=True)
        (folder / split / f"{split}.json").write_text(json.dumps([{**TASK, "SQL": gold}]))
        (folder / split / f"{split}_tables.json").write_text(json.dumps([TABLES]))
        connection = sqlite3.connect(database)
        connection.executescript(
            "CREATE TABLE Customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT);"
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES Customers (id), total INTEGER)"
        )
        rows = [(n, f"name{n}", ("Rome", "Oslo", "Bern")[n % 3]) for n in range(60)]
        with connection:
            connection.executemany("INSERT INTO Customers VALUES (?, ?, ?)", rows)
        connection.close()
    return folder
