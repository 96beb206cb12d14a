"""Types of the values in a profile, with their limits and the texts of the errors about them."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from runner.types import MAX_DURATION_S, MAX_ROUNDS, MAX_WORKERS

NODE_PATTERN = r"\A[A-Za-z0-9_-]{1,64}\Z"
NODE_EXPECTED = "a name of 1 to 64 letters, digits, _ and -"
Text: TypeAlias = Annotated[str, Meta(min_length=1, description="a non-empty text")]
ShortText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, description="a text of 1 to 200 characters")]
Count: TypeAlias = Annotated[int, Meta(ge=1, description="a whole number of at least 1")]
Rounds: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_ROUNDS, description="a whole number from 1 to 1000000")]
Amount: TypeAlias = Annotated[float, Meta(ge=0, description="a number of at least 0")]
Workers: TypeAlias = Annotated[
    Annotated[int, Meta(ge=0, le=MAX_WORKERS)] | Literal["ray"],
    Meta(description="a whole number from 0 to 256, or ray"),
]
Port: TypeAlias = Annotated[int, Meta(ge=1, le=65535, description="a port from 1 to 65535")]
Seconds: TypeAlias = Annotated[  # beyond the upper bound, timers of the operating system overflow
    float, Meta(gt=0, le=MAX_DURATION_S, description="a number of seconds above 0 and at most 1000000000")
]
WaitSeconds: TypeAlias = Annotated[
    float, Meta(ge=0, le=1_000_000_000, description="a number of seconds from 0 to 1000000000")
]
RetentionSeconds: TypeAlias = Annotated[  # the NATS server rejects retention below 0.1 s
    float, Meta(ge=1, le=1_000_000_000, description="a number of seconds from 1 to 1000000000")
]
AGE_PATTERN = r"\A[0-9]{1,6}[smhdw]\Z"
AGE_EXPECTED = "an age such as 12h, 30d or 8w"
Age: TypeAlias = Annotated[str, Meta(pattern=AGE_PATTERN, description=AGE_EXPECTED)]
DiskBytes: TypeAlias = Annotated[
    int, Meta(ge=1 << 20, le=4 << 30, description="a whole number of bytes from 1048576 (1 MiB) to 4294967296 (4 GiB)")
]
MemoryBytes: TypeAlias = Annotated[
    int,
    Meta(ge=1 << 20, le=512 << 20, description="a whole number of bytes from 1048576 (1 MiB) to 536870912 (512 MiB)"),
]
NodeName: TypeAlias = Annotated[str, Meta(pattern=NODE_PATTERN, description=NODE_EXPECTED)]
VARIABLE_NAME_PATTERN = r"\A[A-Za-z_][A-Za-z0-9_]*\Z"

VariableName: TypeAlias = Annotated[
    str, Meta(pattern=VARIABLE_NAME_PATTERN, description="the name of an environment variable, not its value")
]
VariableValue: TypeAlias = Annotated[
    str, Meta(description="a text or a whole number (write any other value in quotes)")
]
Subject: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"\A[^\s.*>]+(?:\.[^\s.*>]+)*\Z",
        description="a NATS subject: tokens separated by dots, without spaces, * and >",
    ),
]
RayAddress: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"\A(?:|auto|[^\s/@:]+:[0-9]{1,5}|\[[^\s/@]+\]:[0-9]{1,5})\Z",
        description="HOST:PORT, auto, or an empty text",
    ),
]
HostName: TypeAlias = Annotated[
    str, Meta(pattern=r"\A[A-Za-z0-9_.:-]{1,253}\Z", description="the name or IP address of a host, without a port")
]
