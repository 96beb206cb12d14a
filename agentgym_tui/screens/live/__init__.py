"""The live screen: environments, timesteps, rewards and traces while episodes run."""
