import contextlib
import io
import re

import pytest

from clnp.cli import app, commands
from clnp.studies import series
from support.terminal import recipe


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a recipe."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(recipe())
    return tmp_path


@pytest.fixture
def clnp(capsys):
    """Run a command: `clnp("resume c", code=2, error=REGEX)` returns what it prints."""

    def run(command, *arguments, code=0, error=""):
        capsys.readouterr()
        found = app.main([*command.split(), *map(str, arguments)])
        printed = capsys.readouterr()
        assert found == code, printed.err
        if error:
            assert re.fullmatch(f"clnp: {error}\n", printed.err, re.DOTALL), printed.err
        return printed.out

    return run


@pytest.fixture
def jobs_here(monkeypatch):
    """Run jobs in this process, the last one first: starting Python takes longer than a run."""

    def run_jobs(jobs, *, at_most):
        codes = {}
        for name, arguments in reversed(jobs.items()):
            assert arguments[:2] == ["-m", "clnp"]
            with contextlib.redirect_stdout(io.StringIO()):
                try:
                    codes[name] = app.main(arguments[2:])
                except SystemExit as end:
                    codes[name] = end.code
        return codes

    monkeypatch.setattr(series, "run_jobs", run_jobs)
    monkeypatch.setattr(commands, "stop_with_parent", lambda: None)
