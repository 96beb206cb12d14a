"""Sources of recipes: the table shipped with the runner, or the recipe folder of an AgentGym checkout."""

from __future__ import annotations

import os
from functools import cache

from runner.envs.textcraft.agentgym_recipes import load_agentgym_table
from runner.envs.textcraft.recipes import RecipeTable, shipped_table

TEXTCRAFT_VARIABLE = "AGENTENV_TEXTCRAFT_PATH"
"""Environment variable for the folder ``agentenv-textcraft/agentenv_textcraft`` of an AgentGym checkout."""


def current_table() -> RecipeTable:
    """Return the table of the folder that ``AGENTENV_TEXTCRAFT_PATH`` names, else the shipped table.

    Raises:
        ConfigError: if the folder has no usable recipes.
    """
    folder = os.environ.get(TEXTCRAFT_VARIABLE, "")
    return _folder_table(folder) if folder else shipped_table()


@cache
def _folder_table(folder: str) -> RecipeTable:
    return load_agentgym_table(folder, TEXTCRAFT_VARIABLE)
