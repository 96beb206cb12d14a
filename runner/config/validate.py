"""Plain data into a ``Profile``, with every reason against it named by its place in the file."""

from __future__ import annotations

import re

import msgspec

from runner.config.constraints import find_violations
from runner.config.diagnostics import MAX_PROBLEMS, FormatValue, KeyPath, Problem, expected_at, known_keys
from runner.config.document import YamlValue
from runner.config.expand import Expanded
from runner.config.profile import Price, Profile

_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)


def build_profile(expanded: Expanded, show: FormatValue) -> Profile | list[Problem]:
    """The profile, or what is wrong with it.

    The first problem is always found. After one that can be taken out of the data the search goes on, so that most
    files show all of theirs at once, though never more than ``MAX_PROBLEMS``.
    """
    if expanded.problems:
        return expanded.problems[:MAX_PROBLEMS]
    problems: list[Problem] = []
    while True:
        try:
            profile = msgspec.convert(expanded.data, Profile)
        except msgspec.ValidationError as exc:
            where, unknown = _locate(str(exc), expanded.data)
            if _keep_text(expanded, where):
                continue
            if any(where == place for place, _ in problems):  # a key that is needed, and was taken out as a bad one
                return problems
            problems.append((where, _reason(where, unknown, expanded.data, show)))
            if len(problems) == MAX_PROBLEMS or not _take_out(expanded.data, where):
                return problems
        else:
            return problems or find_violations(profile, show) or profile


def _locate(message: str, data: YamlValue) -> tuple[KeyPath, bool]:
    """The place in msgspec's message, and whether it is a key that the profile does not know."""
    what, found, steps = message.rpartition(" - at `$")
    where: KeyPath = ()
    for key, index in _STEP.findall(steps if found else ""):
        where += (_failing_model(_at(data, where)) if index == "..." else int(index) if index else key,)
    named = _FIELD.fullmatch(what if found else message)
    if named is None:
        return where, False
    return (*where, named[2]), named[1] == "contains unknown"


def _failing_model(prices: YamlValue) -> str:
    """The key msgspec leaves out of its message; the price list is the only mapping with free keys."""
    for model, price in prices.items() if isinstance(prices, dict) else ():
        try:
            msgspec.convert(price, Price)
        except msgspec.ValidationError:
            return model
    return "..."


def _at(data: YamlValue, where: KeyPath) -> YamlValue:
    for step in where:
        if isinstance(data, dict) and isinstance(step, str):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return None
    return data


def _keep_text(expanded: Expanded, where: KeyPath) -> bool:
    """Undo the reading of an expanded text as a number or the like; False if there is none at ``where``."""
    text = expanded.texts.pop(where, None)
    if text is None or not where:
        return False
    parent, last = _at(expanded.data, where[:-1]), where[-1]
    if isinstance(parent, dict):
        parent[str(last)] = text
    elif isinstance(parent, list) and isinstance(last, int):
        parent[last] = text
    return True


def _take_out(data: YamlValue, where: KeyPath) -> bool:
    """Remove a bad key, to look on without it; False where there is no key to remove."""
    parent, last = _at(data, where[:-1]), where[-1] if where else None
    if not isinstance(parent, dict) or not isinstance(last, str) or last not in parent:
        return False
    del parent[last]
    return True


def _reason(where: KeyPath, unknown: bool, data: YamlValue, show: FormatValue) -> str:
    if unknown:
        return f"unknown key; the keys here are {', '.join(known_keys(where[:-1]))}"
    return f"expected {expected_at(where)}, got {show(where, _at(data, where))}"
