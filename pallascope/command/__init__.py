"""The commands of `python -m pallascope`; `__main__` describes their words and exit statuses.

`options` has what they have in common. `targets` says which kernel is meant, and traces it;
`config` reads from `pyproject.toml` what to do. `checking`, `drawing`, `advising`, `compiling` and
`tuning` are the commands. `sarif` makes a file for code review of what was found, and `colour`
colours text. `advise.schema.json`, `compile.schema.json` and `tune.schema.json` describe what these
commands print as JSON; the schema of `check` is that of reports, `pallascope/report.schema.json`.
"""
