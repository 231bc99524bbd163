"""`pipelib_book.files`: a notebook's functions in a file, and the command line on it."""

from pipelib_book import files


def doubled(x):
    return 2 * x


def test_functions_are_saved_below_imports():
    path = files.save("own.py", doubled, test_functions_are_saved_below_imports)
    text = path.read_text()
    assert text.startswith("import functools\n") and "def doubled(x):\n    return 2 * x\n" in text
    assert compile(text, str(path), "exec")


def test_the_command_runs_in_the_folder_and_says_its_status(capsys):
    folder = files.save("own.py", doubled).parent
    files.command("check own.py:doubled 'f32[4]'", folder)
    said = capsys.readouterr().out
    assert said.startswith("````text\n$ python -m pallascope check own.py:doubled 'f32[4]'\n")
    assert "calls 0 Mosaic GPU kernels" in said and said.rstrip("`\n").endswith("exit status 2")
    assert str(folder) not in said
