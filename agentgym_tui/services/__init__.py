"""Services used by several screens: clipboard, export, screenshots, toasts, timers and redraw throttling."""
