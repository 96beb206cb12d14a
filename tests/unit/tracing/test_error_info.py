"""Error info of exceptions, and the published names of exception classes."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping

import msgspec
import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate

import agentgym_tui
import runner
from runner.errors import EvaluationFault, OracleDiverged, RunnerError
from runner.tracing.tracer import create_error_info, error_attribute, error_type

PUBLISHED = """
    ControlFailed ControlFailed ExportFailed ExportFailed JudgeFailed JudgeFailed NoJetStream NoJetStream
    NotLoaded NotLoaded PlaintextRefused PlaintextRefused ProgramError ProgramError
    ProxyLoginRequired ProxyLoginRequired UnreadableItem UnreadableItem Unusable Unusable UnusableBody UnusableBody
    WrongFormat WrongFormat _NotAdmitted _NotAdmitted _OtherColumns _OtherColumns _Unusable _Unusable _stuck _Stuck
    agent_fault AgentFault batch_in_use BatchInUse broken_actor BrokenActor broken_frame BrokenFrame
    bus_error BusError check_failed CheckFailed config_error ConfigError config_error ConfigError
    context_exceeded ContextExceeded endpoint_failure EndpointFailure environment_fault EnvironmentFault
    environment_fault EnvironmentFault evaluation Evaluation export_stopped ExportStopped
    frame_too_large FrameTooLarge gpu_unavailable GpuUnavailable inference_fault InferenceFault
    invalid_note InvalidNote left_out LeftOut no_model NoModel no_streams NoStreams node_failed NodeFailed
    oracle_diverged OracleDiverged query_error QueryError queue_full QueueFull refused Refused refused Refused
    resource_shortage ResourceShortage runner_error RunnerError server_busy ServerBusy store_error StoreError
    worker_lost WorkerLost worker_problem WorkerProblem worker_start_error WorkerStartError
"""
"""``error.type`` and the span attribute ``error`` of each exception class, as stored in episode files.

``refused`` is in use twice, by the node's control requests and by the pool of the environment server. A name that
cannot be played is published as ``config_error``, and ``ServerGone`` as its base class ``environment_fault``.
"""


NOT_IMPORTED = ("__main__", "remote_runner", "ray_head")
"""Modules that run on import, or that need an extra; they define no exceptions."""


def exception_classes() -> Iterator[type[BaseException]]:
    for package in (runner, agentgym_tui):
        for module_info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module_info.name.endswith(NOT_IMPORTED):
                module = importlib.import_module(module_info.name)
                yield from exceptions_defined_in(vars(module), module.__name__)


def exceptions_defined_in(
    namespace: Mapping[str, object], module: str, outer: str = ""
) -> Iterator[type[BaseException]]:
    for name, value in list(namespace.items()):
        if inspect.isclass(value) and (value.__module__, value.__qualname__) == (module, outer + name):
            if issubclass(value, BaseException):
                yield value
            yield from exceptions_defined_in(vars(value), module, f"{value.__qualname__}.")


def test_every_exception_class_keeps_its_published_values() -> None:
    classes = set(exception_classes())
    words = iter(PUBLISHED.split())
    assert sorted((error_type(kind), error_attribute(kind)) for kind in classes) == sorted(
        zip(words, words, strict=True)
    )


class _Renamed(RunnerError):
    published_error_type = "old_name"


class _RenamedForeign(ValueError):
    published_error_type = "OldName"


class _Derived(_Renamed):
    pass


@pytest.mark.parametrize(
    ("kind", "published", "attribute"),
    [
        (_Renamed, "old_name", "OldName"),
        (_RenamedForeign, "OldName", "OldName"),
        (_Derived, "_derived", "_Derived"),  # subclasses do not inherit the published name
        (KeyError, "KeyError", "KeyError"),
    ],
)
def test_an_explicit_published_name_takes_precedence(kind: type[BaseException], published: str, attribute: str) -> None:
    assert (error_type(kind), error_attribute(kind)) == (published, attribute)
    assert create_error_info(kind("x")).type == published


def raise_and_catch(exc: BaseException) -> BaseException:
    try:
        raise exc
    except type(exc) as caught:
        return caught


class HTTPFault(RunnerError):
    pass


@pytest.mark.parametrize(
    ("exc", "kind"),
    [(OracleDiverged("x"), "oracle_diverged"), (HTTPFault("x"), "http_fault"), (KeyError("x"), "KeyError")],
)
def test_an_error_has_a_kind_a_message_and_a_traceback(exc: BaseException, kind: str) -> None:
    info = create_error_info(raise_and_catch(exc))
    assert info.type == kind
    assert info.message == str(exc)
    assert "raise exc" in info.traceback
    assert info.traceback.rstrip().endswith(str(exc))


def test_a_failed_judge_is_an_error_of_evaluation_and_others_have_no_category() -> None:
    info = create_error_info(raise_and_catch(EvaluationFault("no verdict")))
    assert (info.type, info.category) == ("evaluation", "evaluation")
    assert msgspec.json.decode(msgspec.json.encode(info))["category"] == "evaluation"
    assert "category" not in msgspec.json.decode(msgspec.json.encode(create_error_info(KeyError("x"))))


@pytest.mark.parametrize("exc", [MemoryError(), OSError(24, "Too many open files"), OSError(12, "Cannot allocate")])
def test_a_shortage_of_resources_is_the_type_of_every_exception_that_results(exc: BaseException) -> None:
    result = ImportError("cannot import name 'instantiate'")
    result.__cause__ = exc
    for error in (exc, result):
        info = create_error_info(raise_and_catch(error))
        assert info.type == "resources"
        assert info.message.startswith(("no more open files (the limit is ", "no more memory; free memory, or lower"))
        assert str(error) in info.message
        assert str(exc) in info.traceback


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even now")

    __repr__ = __str__


class Blocking(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise SystemExit(3)


def test_exceptions_without_a_readable_message_are_described() -> None:
    info = create_error_info(raise_and_catch(Silent()))
    assert (info.type, info.message) == ("Silent", "<Silent without a readable message>")
    assert "raise exc" in info.traceback
    assert create_error_info(raise_and_catch(Blocking("hm"))).message == "hm"
    assert create_error_info(ValueError("never \udc80 raised")).message == "never \\udc80 raised"


def test_long_errors_are_truncated() -> None:
    info = create_error_info(raise_and_catch(ValueError("start " + "é" * 20_000 + " end")))
    assert info.message.startswith("start é")
    assert info.message.endswith("é…")
    assert info.traceback.startswith("…")
    assert info.traceback.endswith("é end\n")
    assert max(len(info.message.encode()), len(info.traceback.encode())) <= 16 * 1024


def test_secrets_are_masked_before_truncation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hunter2-hunter2")
    info = create_error_info(
        raise_and_catch(ValueError("x" * (16 * 1024 - 10) + " hunter2-hunter2 https://me:pw@host/"))
    )
    assert "hunter2" not in info.message + info.traceback
    assert "me:pw" not in info.message + info.traceback


def test_exceptions_wrapped_by_hydra_are_unwrapped() -> None:
    with pytest.raises(InstantiationException) as caught:
        instantiate({"_target_": "fractions.Fraction", "numerator": 1, "denominator": 0})
    info = create_error_info(caught.value)
    assert (info.type, info.message) == ("ZeroDivisionError", "Fraction(1, 0)")
    assert "InstantiationException" not in info.traceback
