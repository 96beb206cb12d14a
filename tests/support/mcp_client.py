"""The Model Context Protocol's own client; a virtual environment with its package runs this file.

    python mcp_client.py CALLS COMMAND [ARGUMENT…]

CALLS is a JSON list of tools with their arguments, and optionally seconds after which the call is given up. Prints what
the server is, its tools, and the result of each call, or the code of its error.
"""

import asyncio
import json
import os
import sys
from typing import Any

import mcp
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError


async def main(calls: list[list[Any]], command: str, *arguments: str) -> None:
    server = StdioServerParameters(command=command, args=list(arguments), env=dict(os.environ))
    async with mcp.Client(server) as client:
        tools = (await client.list_tools()).tools
        found: dict[str, Any] = {
            "protocol": client.protocol_version,
            "server": client.server_info.name,
            "schemas": {tool.name: tool.input_schema for tool in tools},
            "results": [],
        }
        for name, given, *timeout_s in calls:
            try:
                result = await client.call_tool(name, given, read_timeout_seconds=timeout_s[0] if timeout_s else None)
                (text,) = result.content
                found["results"].append([result.is_error, json.loads(text.text)])
            except MCPError as exc:
                found["results"].append([None, exc.error.code])
        await client.session.send_ping()
    sys.stdout.write(json.dumps(found))


asyncio.run(main(json.loads(sys.argv[1]), *sys.argv[2:]))
