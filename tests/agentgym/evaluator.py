"""AgentGym's ``openai_eval.main`` with a scripted model, and without the packages that only training needs."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx

ABSENT = (
    *("torch", "torch.nn", "torch.nn.parallel", "torch.nn.functional", "torch.utils", "torch.utils.data"),
    *("torch.distributed", "torch.optim", "torch.cuda", "transformers", "transformers.generation"),
    *("transformers.generation.utils", "accelerate", "accelerate.utils", "datasets", "trl", "deepspeed", "wandb"),
    *("scipy", "scipy.special", "jsonlines"),
)


class AnyModule(ModuleType):
    """A module that has every name: a class that can be subclassed, created and used as a decorator."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda *_, **__: None, "__call__": lambda _, function: function})


def replace_packages(answers: Iterator[str]) -> None:
    """Put modules in place of packages: empty ones, HTTP by httpx, and a model that gives the answers in order."""
    for name in ABSENT:
        module = AnyModule(name)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    sys.modules["tqdm"] = made("tqdm", tqdm=lambda items, **_: items)
    exceptions = made("requests.exceptions", RequestException=OSError)
    client = httpx.Client(trust_env=False)
    sys.modules["requests"] = made(
        "requests",
        post=lambda url, json=None, timeout=None: client.post(url, json=json, timeout=timeout),
        get=lambda url, timeout=None: client.get(url, timeout=timeout),
        RequestException=OSError,
        exceptions=exceptions,
    )
    sys.modules["requests.exceptions"] = exceptions

    def create(**_: Any) -> SimpleNamespace:  # noqa: ANN401
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=next(answers)))])

    model = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    sys.modules["openai"] = made("openai", OpenAI=lambda **_: model)


def made(name: str, **names: Any) -> ModuleType:  # noqa: ANN401
    module = ModuleType(name)
    vars(module).update(names)
    return module


def main(plan: dict[str, Any]) -> None:
    """Run the Evaluator for one item; it writes ``OUT/ITEM.json``."""
    replace_packages(iter(plan["answers"]))
    items = Path(plan["out"], "items.json")
    items.write_text(json.dumps([{"item_id": plan["item"]}]), encoding="utf-8")
    importlib.import_module("openai_eval").main(
        {
            **{"api_key": "none", "base_url": "", "model": "m", "max_tokens": 512, "temperature": 1, "top_p": 1},
            **{"inference_file": str(items), "output_dir": plan["out"], "task_name": plan["task"], "timeout": 60},
            **{"max_round": len(plan["answers"]), "env_server_base": plan["url"], "data_len": 200},
        }
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
