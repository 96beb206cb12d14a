"""One module for each group of promises; each check is a generator of violations."""
