"""What `make` installs is what the lock says, whatever the package index offers, and a failure ends in one sentence."""

from __future__ import annotations

import hashlib
import os
import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pip
import pytest

ROOT = Path(__file__).resolve().parents[1]
install = runpy.run_path(str(ROOT / "tools" / "install.py"))


def wheel(folder: Path, name: str, version: str, *metadata: str) -> str:
    """Write the wheel of a package with one module, and return its SHA-256."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": "\n".join(("Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *metadata, "")),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment, with the pip that Python brings."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    return home / "bin" / "python"


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the pip of the lock, to be put in front of the one that Python brings."""
    folder = tmp_path_factory.mktemp("newest")
    (folder / "pip").symlink_to(Path(pip.__file__).parent)
    return folder


@pytest.mark.parametrize("which", ["bundled", "newest"])
@pytest.mark.sample(1)
def test_the_lock_is_installed_as_it_stands_whatever_the_index_offers(
    which: str, environment: Path, newest: Path, tmp_path: Path
) -> None:
    """As it happened: a package asks for an extra of another (`flwr` for `sqlalchemy[asyncio]`), of which the index has
    a newer release than the lock, and a pip that looks the extra up stops."""
    index = tmp_path / "index"
    index.mkdir()
    pins = {
        "server==1.0": wheel(index, "server", "1.0", "Requires-Dist: database[waiting]<3,>=2"),
        "database==2.1": wheel(index, "database", "2.1", "Provides-Extra: waiting", WAITING),
        "threads==1.0": wheel(index, "threads", "1.0"),
    }
    wheel(index, "database", "2.2", "Provides-Extra: waiting", WAITING)
    wheel(index, "threads", "1.1")
    lock = tmp_path / "requirements.lock"
    lock.write_text("".join(f"{pin} --hash=sha256:{digest}\n" for pin, digest in pins.items()))
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    environ |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    environ |= {"PYTHONPATH": str(newest)} if which == "newest" else {}

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=environ, capture_output=True, text=True)

    version = run([str(environment), "-m", "pip", "--version"]).stdout.split()[1]
    command = install["install_lock"](environment, lock)
    if version == "23.2.1":
        resolved = run([part for part in command if part != "--no-deps"])
        assert "all requirements must have their versions pinned with ==" in resolved.stderr
    done = run([*command, "--force-reinstall"])
    assert done.returncode == 0, f"pip {version}: {done.stderr}"
    found = run([str(environment), "-c", "import database, server, threads; print(database.version, threads.version)"])
    assert found.stdout.split() == ["2.1", "1.0"], found.stderr
    check = run([str(environment), "-m", "pip", "check"])
    assert check.returncode == 0, check.stdout

    lock.write_text(lock.read_text().replace("threads==1.0", "threads==1.1"))
    other = run([*command, "--force-reinstall"])
    assert other.returncode
    assert "is not the one that requirements.lock names" in install["explain"](other.stdout + other.stderr)


WAITING = 'Requires-Dist: threads>=1; extra == "waiting"'


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"PIP_INDEX_URL": "https://127.0.0.1:9/simple"}, "there is no connection to the package index"),
        (
            {"PIP_INDEX_URL": "https://example.org/simple", "HTTPS_PROXY": "http://127.0.0.1:9"},
            "the proxy does not let",
        ),
        ({"PIP_NO_INDEX": "1"}, "has no ready-made threads for Python"),
    ],
)
def test_a_failing_download_is_explained(
    options: dict[str, str], sentence: str, environment: Path, tmp_path: Path
) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"threads==1.0 --hash=sha256:{'0' * 64}\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environ |= {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1", "NO_PROXY": "127.0.0.1"} | options
    environ.pop("no_proxy", None)
    done = subprocess.run(
        [*install["install_lock"](environment, lock), "--force-reinstall"], env=environ, capture_output=True, text=True
    )
    assert done.returncode
    assert sentence in install["explain"](done.stdout + done.stderr), done.stderr


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "the disk is full"),
        (
            "WARNING: Retrying (Retry(total=4)) after connection broken by 'SSLError(SSLCertVerificationError(1, "
            "'[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate in chain'))'",
            "PIP_CERT",
        ),
        ("The virtual environment was not created successfully because ensurepip is not available.", "python3-venv"),
        ("error: [Errno 13] Permission denied: '.venv'", "cannot be written to"),
        ("  error: command 'gcc' failed: No such file or directory\nERROR: Failed building wheel for x", "be compiled"),
        ("WARNING: Location 'x' is ignored\nERROR: Something else went wrong\n\n", "ERROR: Something else went wrong"),
        ("", "pip ended without a word"),
    ],
)
def test_a_failing_step_is_explained(output: str, sentence: str) -> None:
    assert sentence in install["explain"](output)


def test_too_old_a_python_and_too_little_room_are_refused_before_anything_is_done() -> None:
    with pytest.raises(install["CannotInstall"], match=r"Python 3\.9 is too old\. equifed needs Python 3\.11 to 3\.14"):
        install["check_python"]((3, 9, 18))
    install["check_python"]((3, 11, 0))
    with pytest.raises(install["CannotInstall"], match=r"0\.3 GB are free in .*, and an installation takes 3 GB"):
        install["check_room"](287e6)
    install["check_room"](4e9)


def test_every_step_has_a_line_with_its_seconds_and_an_end_that_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    log: list[str] = []
    install["carry_out"]("1 of 2: a step", [sys.executable, "-c", "print('done')"], log)
    with pytest.raises(install["CannotInstall"], match="the disk is full"):
        install["carry_out"]("2 of 2: another", [sys.executable, "-c", "raise OSError(28, 'No space left')"], log)
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"  1 of 2: a step \.\.\. \d+ s", first)
    assert second == "  2 of 2: another ... failed"
    assert log[0].endswith("\ndone\n")


def test_an_environment_that_does_not_start_is_made_anew_and_a_program_that_does_not_is_said(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "pyvenv.cfg").write_text("version = {}.{}.{}\n".format(*sys.version_info))
    python = tmp_path / "bin" / "python"
    python.symlink_to(tmp_path / "moved")
    assert not install["same_python"](tmp_path)
    with pytest.raises(install["CannotInstall"], match=r"does not start .* Remove \.venv"):
        install["carry_out"]("a step", [str(python)], [])
    python.unlink()
    python.symlink_to(sys.executable)
    assert install["same_python"](tmp_path)
    (tmp_path / "pyvenv.cfg").write_text("version = 3.11.99\n")
    assert not install["same_python"](tmp_path)


def test_both_distributions_are_installed_from_the_checkout_without_resolving() -> None:
    *_, (title, command), (_, check) = install["steps"]("python")
    assert title == "equifed and equifed-papers"
    assert {"--no-deps", "--no-build-isolation"} <= set(command)
    assert command[-4:] == ["-e", str(ROOT), "-e", str(ROOT / "papers")]
    assert check == ["python", "-m", "pip", "check"]


def test_a_log_that_cannot_be_written_is_not_spoken_of(tmp_path: Path) -> None:
    assert install["kept"](["text"], tmp_path / "nowhere") == ""
    assert install["kept"](["text"], tmp_path).endswith("install.log.")
    assert (tmp_path / "install.log").read_text() == "text"


def test_the_pythons_that_are_named_are_those_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">={install["written"](install["OLDEST"])}"' in project
    makefile = (ROOT / "Makefile").read_text()
    assert f"{install['written'](install['OLDEST'])} to {install['written'](install['NEWEST'])}" in makefile
