"""Single files, each run by path under the worker's or the server's Python: standard library at the top, no ``eagle3``.

Each takes one JSON argument and prints its answer as the last line ``@eagle3 {…}`` on stdout.
"""
