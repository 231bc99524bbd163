"""The commands of `python -m pallascope`; `__main__` describes their words and exit statuses.

`options` has what they have in common. `targets` says which kernel is meant, and traces it;
`config` reads targets from `pyproject.toml`. `blocks` checks the blocks of a target, in several
processes if that pays. `checking`, `drawing`, `compiling` and `tuning` are the commands. `sarif`
makes a file for code review of what was found.
"""
