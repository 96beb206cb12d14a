"""Log files of any size: index of the lines, search, and the time and kind of each line."""
