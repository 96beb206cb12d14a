"""Where one types, however fast."""

from __future__ import annotations

from textual import events
from textual.widgets import Input


class TextField(Input):
    """A line in which keys act in their order.

    The framework adds a letter at once, and looks for what another key does only when all that is around the field has
    seen it: of keys that come together, as over a slow line, a letter would overtake the backspace before it.
    """

    async def on_key(self, event: events.Key) -> None:
        """Do what a key does here or on this screen; once a key before it has gone elsewhere, it is for that part."""
        if self.app.focused is not self:
            self.app.post_message(events.Key(event.key, event.character))
        elif event.is_printable or not await self._done(event.key):
            return
        event.stop().prevent_default()

    async def _done(self, key: str) -> bool:
        for node in (self, self.screen):
            for binding in node._bindings.key_to_bindings.get(key, ()):
                if not binding.priority and await self.app.run_action(binding.action, node):
                    return True
        return False
