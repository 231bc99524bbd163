"""What a type checker says of code that uses pipelib: right code passes, wrong code does not."""

import json
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
CHECKER = shutil.which(ROOT / ".venv-lint" / "bin" / "basedpyright") or shutil.which("basedpyright")
needs_checker = pytest.mark.skipif(
    CHECKER is None, reason="no basedpyright here: `make lint` makes .venv-lint, which has it"
)

PROGRAM = "import pallascope\np = pallascope.trace(lambda: None)\n"
# Code after PROGRAM, and the rule that it breaks.
WRONG = {
    "simulate(p, 3)": ("pallascope.simulate(p, 3)\n", "reportArgumentType"),
    "nope": ("pallascope.nope\n", "reportAttributeAccessIssue"),
    "simulate without a program": ("pallascope.simulate()\n", "reportCallIssue"),
    "check of a function": ("pallascope.check(lambda: None)\n", "reportArgumentType"),
    "cycles of a report": ("pallascope.check(p).cycles\n", "reportAttributeAccessIssue"),
    "player of a program": ("p.player()\n", "reportAttributeAccessIssue"),
}
RIGHT = PROGRAM + "cycles: float = pallascope.simulate(p, pallascope.H200).cycles\n"


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """The rules that each file breaks, by its name, and what is said; all from one call."""
    folder = tmp_path_factory.mktemp("types")
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    session = re.findall(r"^(?:>>>|\.\.\.) (.*\n)", README, re.MULTILINE)
    files = {"kernel": program, "session": "".join(session), "right": RIGHT}
    files |= {name: PROGRAM + code for name, (code, _) in WRONG.items()}
    paths = {}
    for name, text in files.items():
        paths[name] = folder / f"{re.sub(r'\W', '_', name)}.py"
        paths[name].write_text(text, "utf-8")
    settings = {"extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    python = pathlib.Path(CHECKER).with_name("python")
    done = subprocess.run(
        [CHECKER, "--outputjson", "--pythonpath", str(python), "--project", str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    found = {name: [] for name in files}
    names = {path.name: name for name, path in paths.items()}
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        found[names[pathlib.Path(each["file"]).name]].append((each["rule"], each["message"]))
    return found


@needs_checker
def test_the_readme_s_examples_and_right_code_have_no_errors(errors):
    right = errors.keys() - WRONG
    assert {"kernel", "session", "right"} == right
    assert [(name, errors[name]) for name in right if errors[name]] == []


@needs_checker
@pytest.mark.parametrize("name", WRONG)
def test_wrong_code_has_one_error(errors, name):
    assert [rule for rule, _ in errors[name]] == [WRONG[name][1]]
