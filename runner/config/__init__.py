"""Profiles: the environments, limits and models of a node, and the location of its state directory."""

from runner.config.load import ProfileFile as ProfileFile
from runner.config.load import find_data_dir as find_data_dir
from runner.config.load import load_profile as load_profile
from runner.config.load import profile_digest as profile_digest
from runner.config.load import read_profile as read_profile
from runner.config.load import resolve_node as resolve_node
from runner.config.profile import AgentSettings as AgentSettings
from runner.config.profile import ARESettings as ARESettings
from runner.config.profile import EnvironmentEntry as EnvironmentEntry
from runner.config.profile import Environments as Environments
from runner.config.profile import EpisodeSettings as EpisodeSettings
from runner.config.profile import EventsStream as EventsStream
from runner.config.profile import LiveStream as LiveStream
from runner.config.profile import LiveTokens as LiveTokens
from runner.config.profile import NatsSettings as NatsSettings
from runner.config.profile import NotifySettings as NotifySettings
from runner.config.profile import Profile as Profile
from runner.config.profile import RaySettings as RaySettings
from runner.config.profile import SkipEntry as SkipEntry
from runner.config.profile import StreamSettings as StreamSettings
