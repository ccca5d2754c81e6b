"""Kineto traces, as PyTorch's profiler writes them: the files of N ranks become one trace.

`load` puts them together. `ranks` says which file is of which rank, `workers` has them read, by
processes if they are large, and `cache` keeps what was read. One file goes through `text` (unpacked
and cut into events), `events` (decoded), `rows` (gathered into columns), and `file`, with `lanes`,
`communications` and `about`, into a table.
"""
