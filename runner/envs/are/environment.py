"""Meta's Agents Research Environments (ARE): ``AREEnvironment`` plays one scenario, named ``are:<scenario>``.

The scenario runs in a worker process with ARE's own interpreter (``runner.envs.are.client``); this process never
imports ``are``. ``are:<scenario>`` has one task; ``are:offline`` has one task per scenario of ``OFFLINE_SCENARIOS``.

**Messages.** The content of each message of an observation starts with the tag of its kind, exactly once:

- ``[result] ``: result of the tool call; ``[error] ``: its error;
- ``[user] ``: message of the scenario's user;
- ``[notification] ``: notification of an app, whose text starts with the app's name and a colon;
- ``[environment] ``: the simulated time, waits, and the end of the scenario.

The first message answers the tool call (role ``tool`` if the action was a tool call, else ``user``); all others have
the role ``user``. Text after the tag is untrusted; a tag is only valid at the start of a message. The last message is
always ``[environment] `` with the simulated time.

**Evaluation details** (``get_evaluation_details``), JSON with these keys:

- ``success`` (bool, or None if the judge failed), ``rationale`` (text or None), ``exception`` (text or None);
- ``judge``: what rated, ``scenario`` for the scenario's own ``validate``;
- ``rated`` (bool): False if the scenario has no oracle event, so that it may rate true although no agent acted;
- ``n_oracle_events``, ``events``: completed events ``{app, function, args, type, time, error?}``, ``events_dropped``;
- ``missed``: oracle events without a matching agent event, ``{app, function, args, reason}``;
- ``duration`` (seconds), ``simulated_s`` (seconds of simulated time), ``scenario``, ``memory_mib`` (peak of the worker),
  ``memory_limit_mib``.
"""
