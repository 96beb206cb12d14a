"""State of a machine, sent as a live item: its GPUs, CPU, memory, disk and network."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from runner.types.episode_events import ItemBase

MAX_GPUS = 16
"""Maximum number of GPUs that one machine reports."""
MAX_PROCESSES = 16
"""Maximum number of processes that one GPU, or one of its instances, reports; those with the most memory are kept."""
MAX_INSTANCES = 8
"""Maximum number of instances that one GPU reports; NVIDIA divides a GPU into at most 7."""


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that uses a GPU."""

    pid: Annotated[int, Meta(description="process id, as the driver sees it")]
    name: Annotated[str | None, Meta(description="name of the process; null in a container")] = None
    mem_used: Annotated[int | None, Meta(description="its memory on the GPU, in bytes")] = None


class GpuInstance(msgspec.Struct, frozen=True, kw_only=True):
    """State of one instance of a divided GPU (MIG mode); drivers report neither its utilization nor its power."""

    index: Annotated[int, Meta(description="number of the instance on its GPU, from 0")]
    name: Annotated[str | None, Meta(description="name given by the driver, with its size")] = None
    uuid: Annotated[str | None, Meta(description="id given by the driver")] = None
    mem_used: Annotated[int | None, Meta(description="memory in use, in bytes")] = None
    mem_total: Annotated[int | None, Meta(description="total memory, in bytes")] = None
    processes: Annotated[
        tuple[GpuProcess, ...] | None, Meta(description="processes that compute on it, at most 16")
    ] = None


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one GPU; a value that the GPU or its driver does not report is null."""

    index: Annotated[int, Meta(description="number of the GPU on its machine, from 0")]
    name: Annotated[str | None, Meta(description="name given by the driver")] = None
    uuid: Annotated[str | None, Meta(description="id given by the driver")] = None
    lost: Annotated[str | None, Meta(description="why the GPU cannot be read; null while it can")] = None
    util: Annotated[float | None, Meta(description="utilization in percent")] = None
    mem_used: Annotated[int | None, Meta(description="memory in use, in bytes")] = None
    mem_total: Annotated[int | None, Meta(description="total memory, in bytes")] = None
    power_w: Annotated[float | None, Meta(description="power in watts")] = None
    power_limit_w: Annotated[float | None, Meta(description="enforced limit of the power in watts")] = None
    temperature: Annotated[float | None, Meta(description="temperature in degrees Celsius")] = None
    throttled: Annotated[
        tuple[str, ...] | None, Meta(description="why its clocks are reduced; empty if they are not")
    ] = None
    mig: Annotated[bool | None, Meta(description="whether it is divided into instances (MIG mode)")] = None
    instances: Annotated[tuple[GpuInstance, ...], Meta(description="instances of a divided GPU, at most 8")] = ()
    energy_j: Annotated[
        float | None,
        Meta(description="energy in joules since its driver was loaded; with several GPUs extrapolated at times"),
    ] = None
    processes: Annotated[
        tuple[GpuProcess, ...] | None, Meta(description="processes that compute on it, at most 16")
    ] = None


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """Network traffic of a machine since the previous item, without its loopback interface."""

    sent_per_s: Annotated[float, Meta(description="bytes sent per second")]
    received_per_s: Annotated[float, Meta(description="bytes received per second")]


class Machine(ItemBase, kw_only=True, tag="machine"):
    """State of the node's machine, every 2 s while an episode runs or something receives live items."""

    gpu: Annotated[list[GpuState], Meta(description="its GPUs, at most 16")]
    gpu_cause: Annotated[str | None, Meta(description="why no GPU can be read; null if one can")] = None
    cpu: Annotated[float | None, Meta(description="CPU utilization in percent since the previous item")] = None
    n_cpus: Annotated[int | None, Meta(description="number of logical CPUs")] = None
    ram: Annotated[float | None, Meta(description="memory in use, in percent")] = None
    ram_total: Annotated[int | None, Meta(description="total memory, in bytes")] = None
    disk_free: Annotated[int | None, Meta(description="free space for the state directory, in bytes")] = None
    disk_total: Annotated[int | None, Meta(description="size of that file system, in bytes")] = None
    net: Annotated[Network | None, Meta(description="network traffic; null in the first item")] = None


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the GPUs of the machine did for one episode.

    Attributes:
        energy_j: energy of the GPUs in joules; None if it was not measured.
        energy_shared: whether other episodes ran meanwhile, so that the values are shares by time: an estimate.
        gpu_s: seconds during which GPUs were busy, of all GPUs together; None if they were not measured.
    """

    energy_j: float | None = None
    energy_shared: bool = False
    gpu_s: float | None = None
