"""The faults: a place in the product, its text and the faulty one, and the tests that should fail.

``kind`` is what users would suffer: events or episodes ``lost`` or ``doubled``, numbers ``miscounted``, text that
reaches the terminal ``unsanitised``, a ``secret`` that is shown or passed on, or another ``broken`` promise.
"""

# ruff: noqa: E501 - a fault is what stands in the product

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["lost", "doubled", "miscounted", "unsanitised", "secret", "broken"]


class Mutant(NamedTuple):
    """A fault.

    Attributes:
        path: the module, from the repository's root.
        before: text that occurs exactly once in it.
        after: the faulty text in its place.
        tests: files or folders with the tests that should notice it.
    """

    kind: Kind
    path: str
    before: str
    after: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """The module and the changed line, for people."""
        line = next((line for line in self.before.splitlines() if line.strip()), "")
        return f"{self.path.removesuffix('.py')}: {line.strip()[:60]}"


def _mutant(kind: Kind, path: str, before: str, after: str, *tests: str) -> Mutant:
    return Mutant(kind, path, before, after, tuple(f"tests/{each}" for each in tests))


MUTANTS = (
    # stores
    _mutant(
        "lost",
        "runner/worker/episode_reporter.py",
        "        if self._journal is not None and (unjournaled := self._journal.write(part)) is not None:\n"
        "            self._journal = None",
        "        self._send(part)\n"
        "        if self._journal is not None and (unjournaled := self._journal.write(part)) is not None:\n"
        "            self._journal = None",
        "unit/store",
    ),
    _mutant(
        "lost",
        "runner/store/recorder.py",
        "                return written\n        return arrived",
        "                return arrived\n        return arrived",
        "unit/store",
    ),
    _mutant(
        "doubled", "runner/store/episode_store.py", "        return not is_free", "        return False", "unit/store"
    ),
    _mutant(
        "lost",
        "runner/store/journal.py",
        "    for number, data in enumerate(lines[:-1], start=2):",
        "    for number, data in enumerate(lines[:-2], start=2):",
        "unit/store",
    ),
    _mutant(
        "lost",
        "runner/store/journal.py",
        'write_all(self._descriptor, journal_line(part) + b"\\n")',
        "write_all(self._descriptor, journal_line(part))",
        "unit/store",
    ),
    _mutant(
        "lost",
        "runner/store/recorder.py",
        "            self._save(content)\n            self._is_stored = True",
        "            self._is_stored = True",
        "unit/store",
    ),
    _mutant(
        "lost",
        "runner/store/recorder.py",
        "        if self.record is not None and self.content is not None:\n            self._save(self.content)",
        "        if self.record is not None and self.content is not None:\n            pass",
        "unit/store",
        "unit/batch",
    ),
    _mutant(
        "lost",
        "runner/store/pruning.py",
        "        if new:\n            write_archive(",
        "        if False:\n            write_archive(",
        "unit/store",
    ),
    _mutant(
        "lost", "runner/store/archive.py", "if name not in without} | added", "if name not in without}", "unit/store"
    ),
    _mutant(
        "lost",
        "runner/store/index.py",
        "            damaged.append(DamagedFile(path if os.path.lexists(path) else archive, reason))",
        "            pass",
        "unit/store",
    ),
    _mutant(
        "lost",
        "runner/store/index_scan.py",
        "    except (StoreError, OSError) as exc:\n        damaged.append(DamagedFile(store.runs / batch_id, str(exc)))",
        "    except (StoreError, OSError):\n        pass",
        "unit/store",
    ),
    _mutant("lost", "runner/store/index_scan.py", " and now_ns - changed_at_ns > TRUSTED_AGE_NS:", ":", "unit/store"),
    _mutant(
        "lost",
        "runner/store/index.py",
        '    connection.executemany("DELETE FROM folders',
        '    0 and connection.executemany("DELETE FROM folders',
        "unit/store",
    ),
    _mutant("lost", "runner/store/index.py", "if self.database.generation == generation:", "if True:", "unit/store"),
    _mutant(
        "miscounted",
        "agentgym_tui/sessions/file_library.py",
        "        AND found.stamp = episodes.stamp\n",
        "",
        "tui/sessions/test_kept_index.py",
    ),
    _mutant(
        "lost",
        "agentgym_tui/sessions/file_library.py",
        "            if not self._version[1] or self._table.generation == self._generation:",
        "            if True:",
        "tui/sessions/test_kept_index.py",
    ),
    _mutant(
        "broken",
        "agentgym_tui/sessions/file_library.py",
        "if all(each.stat().st_uid == os.geteuid() for each in (self._cache, self._cache.parent)):",
        "if True:",
        "tui/sessions/test_kept_index.py",
    ),
    _mutant("lost", "runner/store/index_rows.py", "None) or _read(store, part)", "Rows([], []))", "unit/store"),
    _mutant(
        "lost",
        "runner/store/episode_store.py",
        "    except StoreError as exc:\n        damaged.append(DamagedFile(archive, str(exc)))",
        "    except StoreError:\n        pass",
        "unit/store",
    ),
    _mutant(
        "doubled",
        "runner/store/episode_store.py",
        "_list_archive(archive, damaged) | files if",
        "files | _list_archive(archive, damaged) if",
        "unit/store",
    ),
    _mutant(
        "lost",
        "runner/store/token_file.py",
        "itertools.islice(records, MAX_RECORDS)",
        "itertools.islice(records, 1)",
        "unit/store",
    ),
    _mutant(
        "secret",
        "runner/util/files.py",
        "os.O_APPEND | os.O_NOFOLLOW, 0o600)",
        "os.O_APPEND | os.O_NOFOLLOW, 0o644)",
        "unit/util",
        "unit/store",
    ),
    _mutant(
        "lost",
        "runner/util/files.py",
        "    while written < len(data):\n        written += os.write(descriptor, data[written:])",
        "    return",
        "unit/util",
        "unit/store",
    ),
    _mutant(
        "lost",
        "runner/util/files.py",
        "            os.fsync(descriptor)\n        temporary.rename(path)",
        "        temporary.rename(path)",
        "unit/util",
        "unit/store",
        "faults",
    ),
    # numbers
    _mutant(
        "miscounted",
        "runner/results/statistics.py",
        "    rate, spread = successes / n, _Z * _Z / n",
        "    rate, spread = successes / n, _Z / n",
        "unit/results",
    ),
    _mutant(
        "miscounted",
        "runner/results/statistics.py",
        "math.comb(successes, k) / math.comb(n, k)",
        "(successes / n) ** k",
        "unit/results",
    ),
    _mutant(
        "miscounted",
        "runner/results/summary.py",
        'IS_RATED = f"outcome NOT IN ({_UNRATED_LIST}) AND NOT unscored"',
        'IS_RATED = f"outcome NOT IN ({_UNRATED_LIST})"',
        "unit/results",
        "unit/formats",
    ),
    _mutant(
        "miscounted",
        "runner/results/summary.py",
        "        return self.outcome not in UNRATED and not self.unscored",
        "        return self.outcome not in UNRATED",
        "unit/results",
    ),
    _mutant(
        "miscounted",
        "runner/results/summary.py",
        "        return self.model is None and self.transport != IMPORTED",
        "        return self.model is None",
        "unit/formats",
        "unit/results",
    ),
    _mutant(
        "miscounted",
        "runner/results/summary.py",
        "        score=_quotient(sum(group.reward for group in averaged), sum(group.n_rewards for group in averaged)),",
        "        score=_quotient(sum(group.reward for group in averaged), sum(group.n for group in averaged)),",
        "unit/formats",
        "unit/results",
    ),
    _mutant(
        "miscounted",
        "runner/types/data.py",
        "    return AgentGymScore(score, score == best_agentgym_score(env))",
        "    return AgentGymScore(score, score > 0)",
        "unit/results",
    ),
    _mutant(
        "miscounted",
        "runner/batch/result.py",
        "        if record.outcome not in UNRATED and not record.unscored:",
        "        if not record.unscored:",
        "unit/batch",
    ),
    _mutant(
        "miscounted",
        "runner/batch/result.py",
        "        self.tokens += record.tokens\n",
        "        self.tokens = record.tokens\n",
        "unit/batch",
    ),
    _mutant(
        "miscounted",
        "runner/batch/stopping.py",
        "        self._n_tokens += record.tokens.total",
        "        self._n_tokens += record.tokens.completion",
        "unit/batch",
    ),
    _mutant(
        "broken",
        "runner/batch/stopping.py",
        "        elif record.outcome not in UNFINISHED:\n            self._n_errors = 0",
        "        else:\n            self._n_errors = 0",
        "unit/batch",
    ),
    _mutant(
        "doubled",
        "runner/batch/result.py",
        "if (planned.task_index, planned.attempt) not in done]",
        "if planned.task_index >= 0]",
        "unit/batch",
    ),
    _mutant(
        "broken",
        "runner/batch/spec.py",
        "        tasks = range(self.task_index, self.task_index + self.repeat) if self.tasks is None else self.tasks",
        "        tasks = range(self.task_index, self.task_index + self.repeat)",
        "unit/batch",
        "contract/test_agentgym_agent.py",
    ),
    _mutant(
        "miscounted",
        "runner/formats/drafts.py",
        "        return Outcome.INTERRUPTED, False, False",
        "        return Outcome.FAILURE, False, rated",
        "unit/formats",
    ),
    _mutant(
        "miscounted",
        "runner/formats/drafts.py",
        "    record.tokens = draft.tokens or record.tokens\n",
        "",
        "unit/formats",
    ),
    _mutant(
        "lost",
        "runner/formats/export.py",
        "        reasons[UNREADABLE] += 1\n",
        "        pass\n",
        "unit/cli",
        "unit/formats",
    ),
    # delivery
    _mutant(
        "lost",
        "runner/publish/delivery.py",
        '        return TransientFailure("the answer is not an acknowledgement")\n    return Ack(event.id, answer.stream, answer.seq)',
        "        return Ack(event.id)\n    return Ack(event.id, answer.stream, answer.seq)",
        "unit/publish",
    ),
    _mutant(
        "lost",
        "runner/publish/delivery.py",
        "        return PermanentFailure(cause) if answer.error.err_code == _TOO_LARGE else TransientFailure(cause)",
        "        return PermanentFailure(cause)",
        "unit/publish",
    ),
    _mutant(
        "lost",
        "runner/publish/delivery.py",
        "        await client.flush(options.ack_timeout_s)\n    except _PERMANENT as exc:",
        "        pass\n    except _PERMANENT as exc:",
        "unit/publish",
        "faults/test_publisher.py",
    ),
    _mutant(
        "lost",
        "runner/publish/outbox.py",
        "WHERE sink = ? AND stream = ? AND seq > ? AND state = 'acked'\"",
        "WHERE sink = ? AND stream = ? AND seq > ? AND state = 'dead'\"",
        "unit/publish",
    ),
    _mutant(
        "lost",
        "runner/publish/outbox.py",
        "AND coalesce(subject, ?2) NOT IN ({others}) GROUP BY n ORDER BY n LIMIT ?3",
        "AND coalesce(subject, ?2) NOT IN ({others}) GROUP BY n ORDER BY n DESC LIMIT ?3",
        "unit/publish",
    ),
    _mutant(
        "lost",
        "runner/publish/outbox.py",
        "            connection.execute(_ADD_MISSED)",
        "            pass",
        "unit/publish",
    ),
    _mutant(
        "doubled",
        "runner/publish/outbox.py",
        "iif(has_read OR new.is_new, 'pending', 'held')",
        "'pending'",
        "unit/publish",
    ),
    _mutant(
        "lost",
        "runner/publish/outbox.py",
        "                    connection.execute(_HOLD_EARLIER, (sink,))",
        "                    pass",
        "unit/publish",
    ),
    _mutant(
        "doubled",
        "runner/subscribe/buffer.py",
        "        if message.stream is not None and self._was_delivered_by_core(message):\n            return\n",
        "",
        "unit/subscribe",
    ),
    _mutant(
        "doubled",
        "runner/subscribe/buffer.py",
        "            if self._is_known(source, event_id):\n                return None\n            self._ids[_key(source, event_id)] = None",
        "            self._ids[_key(source, event_id)] = None",
        "unit/subscribe",
    ),
    _mutant(
        "lost", "runner/subscribe/buffer.py", "            self._skipped += 1\n", "            pass\n", "unit/subscribe"
    ),
    # node
    _mutant(
        "doubled",
        "runner/node/batch_queue.py",
        "            if any(batch.batch_id in self._batches for batch in batches):\n                return False",
        "            if any(batch.batch_id in self._batches for batch in batches):\n                return True",
        "unit/node",
    ),
    _mutant(
        "lost",
        "runner/node/batch_queue.py",
        "                write_all(descriptor, _lines(batches))\n",
        '                write_all(descriptor, b"")\n',
        "unit/node",
    ),
    _mutant(
        "miscounted",
        "runner/node/batch_queue.py",
        "        unfinished = {batch.battery_id for batch in batches if not batch.has_ended}",
        '        unfinished = {batch.battery_id for batch in batches if batch.status == "queued"}',
        "unit/node",
    ),
    _mutant(
        "broken",
        "runner/node/handlers.py",
        "        if any(spec.tasks != given.get(spec.env.lower()) for spec in specs):",
        "        if False:",
        "unit/node",
    ),
    # secrets and hostile text
    _mutant(
        "secret",
        "runner/formats/html_page/page.py",
        "sanitize(self._mask(value).replace",
        "sanitize(value.replace",
        "unit/formats/test_html_page.py",
    ),
    _mutant(
        "unsanitised",
        "runner/formats/html_page/page.py",
        'for char in "<>&',
        'for char in ">&',
        "unit/formats/test_html_page.py",
    ),
    _mutant(
        "secret",
        "runner/util/display_text.py",
        "            text = text.replace(form, MASK)\n",
        "            pass\n",
        "unit/util",
    ),
    _mutant(
        "secret",
        "runner/util/display_text.py",
        '        return _USERINFO.sub(f"://{MASK}@", text)',
        "        return text",
        "unit/util",
    ),
    _mutant(
        "secret",
        "runner/util/display_text.py",
        "    return sorted(forms, key=lambda form: (-len(form), form))",
        "    return sorted(forms)",
        "unit/util",
    ),
    _mutant(
        "secret",
        "runner/util/display_text.py",
        "        if not (name in left_out or is_secret_name(name) or _USERINFO.search(value))",
        "        if not (name in left_out or _USERINFO.search(value))",
        "unit/util",
        "unit/worker",
    ),
    _mutant(
        "secret",
        "runner/serve/request_guard.py",
        '        if not hmac.compare_digest(_sent_token(headers.get("authorization", "")), self._credential):',
        '        if _sent_token(headers.get("authorization", "")) == b"":',
        "unit/serve",
    ),
    _mutant(
        "broken",
        "runner/serve/request_guard.py",
        "        if not (name and known):",
        "        if not name:",
        "unit/serve",
    ),
    _mutant(
        "unsanitised",
        "runner/util/display_text.py",
        '    if _MAY_BE_UNSAFE(head):\n        head = _replaced().sub(_visible, _SELECTORS.sub("", head))',
        "    pass",
        "unit/util",
        "tui/state",
    ),
    _mutant(
        "unsanitised",
        "runner/util/display_text.py",
        'return sanitize(text, limit=limit).replace("\\n", "␊").replace("\\t", "␉")',
        "return sanitize(text, limit=limit)",
        "unit/util",
    ),
    _mutant(
        "unsanitised",
        "agentgym_tui/presenters/cells.py",
        "        shown = sanitize_line(text, MAX_LINE_CHARS)",
        "        shown = text[:MAX_LINE_CHARS]",
        "tui/presenters",
    ),
    _mutant(
        "unsanitised",
        "agentgym_tui/sinks.py",
        "    return Content(sanitize_line(text, MAX_LINE_CHARS))",
        "    return Content(text)",
        "tui/test_sinks.py",
    ),
    _mutant(
        "unsanitised",
        "agentgym_tui/widgets/inputs.py",
        "        return sanitize_line(text, len(text) + MAX_CHARS)",
        "        return text",
        "tui/test_sinks.py",
    ),
    _mutant("unsanitised", "agentgym_tui/cli.py", "{sanitize_message(reason)}", "{reason}", "tui/test_sinks.py"),
    _mutant(
        "unsanitised",
        "agentgym_tui/terminal.py",
        '"\\n".join(sanitize_lines("\\n".join(_report_lines(error, session))).lines)',
        '"\\n".join(_report_lines(error, session))',
        "tui/test_sinks.py",
    ),
    _mutant(
        "unsanitised",
        "agentgym_tui/services.py",
        "title=sanitize_line(title or app.title)",
        "title=title or app.title",
        "tui/test_sinks.py",
    ),
    _mutant(
        "unsanitised",
        "agentgym_tui/services.py",
        "sanitize_message(text, MAX_MESSAGE_CHARS)",
        "text",
        "tui/test_sinks.py",
    ),
    _mutant(
        "unsanitised",
        "agentgym_tui/presenters/cells.py",
        '    parts = sanitize_text(text).split("\\n")',
        '    parts = text.split("\\n")',
        "tui/presenters",
    ),
    _mutant(
        "unsanitised",
        "agentgym_tui/safe_text.py",
        "    return one_line(str(text), limit)",
        "    return str(text)[:limit]",
        "tui/presenters",
        "tui/state",
    ),
    _mutant(
        "secret",
        "agentgym_tui/presenters/machine.py",
        'f": {masked_line(cause, MAX_CAUSE)}"',
        'f": {cause}"',
        "tui/presenters/test_machine_rows.py",
    ),
    _mutant(
        "miscounted",
        "agentgym_tui/presenters/status_line.py",
        "if store.nodes and all(node.lost",
        "if store.nodes and any(node.lost",
        "tui/presenters/test_status_line.py",
    ),
    _mutant(
        "secret",
        "agentgym_tui/presenters/status_line.py",
        'f"{masked_line(name, 40)} {endpoint_state',
        'f"{name} {endpoint_state',
        "tui/presenters/test_status_line.py",
    ),
    _mutant(
        "unsanitised",
        "agentgym_tui/terminal.py",
        '    return sanitize_text(text).encode("utf-8", "replace")',
        '    return text.encode("utf-8", "replace")',
        "tui/terminal/test_outside_program.py",
    ),
    _mutant(
        "unsanitised",
        "agentgym_tui/cli.py",
        '    sys.stdout.write(sanitize_text(f"{path}\\n" if write else default_settings_text(path)))',
        '    sys.stdout.write(f"{path}\\n" if write else default_settings_text(path))',
        "tui/test_sinks.py",
    ),
    _mutant(
        "secret",
        "agentgym_tui/presenters/transcript.py",
        "    names = [mask_secrets(name) for name in (step.endpoint, step.model) if name]",
        "    names = [name for name in (step.endpoint, step.model) if name]",
        "tui/presenters",
    ),
    _mutant(
        "secret",
        "agentgym_tui/presenters/result_rows.py",
        '    return Cell(masked_line(model, 80) or UNKNOWN, "warn" if MIX in model else "plain")',
        '    return Cell(model or UNKNOWN, "warn" if MIX in model else "plain")',
        "tui/presenters",
    ),
    _mutant(
        "secret",
        "agentgym_tui/safe_text.py",
        "    return sanitize(mask_secrets(text[: limit * 4]), limit=limit)",
        "    return sanitize(text[: limit * 4], limit=limit)",
        "tui/presenters",
        "tui/services",
        "tui/sessions",
    ),
    # console
    _mutant(
        "miscounted",
        "agentgym_tui/state/batches.py",
        "is None or batch.has_end_event or batch.status in _FINISHED:\n            return\n        known_boot",
        "is None:\n            return\n        known_boot",
        "tui/state",
    ),
    _mutant(
        "miscounted",
        "agentgym_tui/state/batches.py",
        "        if known_boot == boot and item.seq <= seq:\n            return\n        self._latest_progress",
        "        self._latest_progress",
        "tui/state",
    ),
    _mutant(
        "broken",
        "agentgym_tui/state/nodes.py",
        "        elif item.at <= node.machine.latest.at:\n            return False\n",
        "",
        "tui/state",
    ),
    _mutant(
        "miscounted",
        "agentgym_tui/state/servers.py",
        "    counted = counted_points(points)",
        "    counted = list(points)",
        "tui/state",
        "tui/presenters",
    ),
    _mutant(
        "broken",
        "agentgym_tui/sessions/run_commands.py",
        '        targets = list(filter(can_pause if command == "pause" else can_resume, batches))',
        "        targets = list(batches)",
        "tui/screens/test_live_runs.py",
    ),
    _mutant(
        "broken",
        "agentgym_tui/sessions/run_commands.py",
        'return batch.status == "running" or (batch.status == "queued" and not batch.is_held)',
        'return batch.status in ("running", "queued")',
        "tui/screens/test_live_runs.py",
    ),
    _mutant(
        "broken",
        "agentgym_tui/commands.py",
        '    Scope("saved", modal=True, typing=True, below=("list",)),',
        '    Scope("saved", modal=True, below=("list",)),',
        "tui/commands/test_every_key.py",
        "tui/config/test_settings.py",
    ),
    # agents, environments, models
    _mutant(
        "broken",
        "runner/agents/agentgym.py",
        "    if len(found) > 1:\n        return None\n",
        "",
        "contract/test_agentgym_agent.py",
    ),
    _mutant(
        "broken",
        "runner/envs/wordle.py",
        "        elif letter in unplaced:\n            unplaced.remove(letter)",
        "        elif letter in secret:",
        "unit/envs",
    ),
    _mutant(
        "broken",
        "runner/envs/webshop.py",
        "        if self._compat or self.has_next_page:",
        "        if self.has_next_page:",
        "unit/envs/test_webshop.py",
    ),
    _mutant(
        "broken",
        "runner/envs/babyai/levels.py",
        "{**kwargs, **_CHANGED_ARGUMENTS.get(LEVELS[level], {})}",
        "kwargs",
        "contract/test_wire_babyai.py",
    ),
    _mutant(
        "secret",
        "runner/inference/chat_format.py",
        "if name not in _NOTES}) for each in chat]",
        "}) for each in chat]",
        "unit/inference",
        "unit/agents",
    ),
    # HTTP
    _mutant(
        "secret",
        "runner/util/http.py",
        "    return address is not None and (address.is_loopback or address.is_unspecified)",
        "    return False",
        "unit/inference/test_http_client.py",
    ),
    _mutant(
        "doubled",
        "runner/util/http.py",
        '        raise httpx.ReadError(f"the server disconnected{through}") from exc',
        '        raise httpx.ConnectError(f"the server disconnected{through}") from exc',
        "unit/inference/test_http_client.py",
    ),
    _mutant(
        "secret",
        "runner/util/http.py",
        '        raise httpx.RemoteProtocolError(f"the reply is not valid HTTP{through}") from exc',
        '        raise httpx.RemoteProtocolError(f"the reply is not valid HTTP: {exc}") from exc',
        "unit/inference/test_http_client.py",
    ),
)
