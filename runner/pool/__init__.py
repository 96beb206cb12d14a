"""The driver side of a batch's workers: threads of this process, local processes, or Ray actors behind one protocol."""
