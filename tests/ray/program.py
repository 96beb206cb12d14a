import ray
from ray.util import ActorPool

from runner.worker.remote_runner import RemoteRunner

ray.init()
env = {"_target_": "runner.envs.babyai.BabyAI"}
agent = {"_target_": "runner.agents.baselines.OracleAgent", "twin": env}
pool = ActorPool([RemoteRunner.remote(env_cfg=env, agent_cfg=agent) for _ in range(2)])
played = pool.map_unordered(lambda runner, task: runner.play_episode.remote({"task_index": task}), range(100))
print(sum(trajectory.success for trajectory in played), "of 100 episodes succeeded")  # noqa: T201
