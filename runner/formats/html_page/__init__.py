"""Episodes as one page for a browser, which looks like the console's viewer."""
