"""Services that screens share: clipboard, export, screenshots, toasts, timers and redraw throttling."""
