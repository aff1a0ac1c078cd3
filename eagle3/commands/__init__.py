"""The subcommands of `eagle3`, one module a subject; `eagle3.cli` puts them together."""
