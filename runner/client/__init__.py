"""Clients of nodes, as ``agentgym-runner ctl`` and the console use them.

Without an event loop::

    from runner.client.blocking import open_node

    with open_node() as node:
        (batch,) = node.start(StartArgs(batch_id=new_ulid(), envs=["Maze"], agent="oracle"))
        for item in node.follow(batch.batch_id):
            print(item)

With one, ``async with connected(Target()) as node`` of ``runner.client.target`` has ``node.client`` with the same
names.
"""
