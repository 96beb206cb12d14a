"""The screen of one episode: steps, transcript, trace and file."""
