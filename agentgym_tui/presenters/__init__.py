"""What the screens show, as lines and cells of safe text; nothing here knows a terminal."""
