"""Install what `make` needs into .venv: every package of requirements.lock as it stands there, torch, equifed
and equifed-papers.

The lock names every package, indirect ones too, so nothing is resolved (`--no-deps`): a release that appears on the
package index cannot change or break an installation. `pip check` says afterwards whether the packages fit together.

This runs before anything is installed, on whatever `python3` is: with the standard library alone, and in a syntax that
Python 3.6 can read, so that a Python which is too old is refused in a sentence.
"""

import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST, NEWEST = (3, 11), (3, 14)
"""The Pythons that every package of the lock has a wheel for."""
ROOM = 3e9
"""Bytes that a new installation takes at least; a CUDA build of torch brings 4e9 more."""

REASONS = {
    r"No space left on device|Errno 28|not enough space": (
        "the disk is full. An installation takes 3 GB (7 GB with a CUDA build of torch): make room in this folder and"
        " in the folder for temporary files (TMPDIR), then give the command again."
    ),
    r"ProxyError|Cannot connect to proxy|Tunnel connection failed|407 Proxy|Proxy Authentication Required": (
        "the proxy does not let pip through. Set HTTPS_PROXY to the proxy's address (http://USER:PASSWORD@HOST:PORT),"
        " or PIP_INDEX_URL to a package index inside your network, then give the command again."
    ),
    r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|SSLError": (
        "the package index shows a certificate that is not trusted here, as a proxy that opens TLS does. Set PIP_CERT"
        " to the file of your network's certificate authority, then give the command again."
    ),
    r"DO NOT MATCH THE HASHES": (
        "a package is not the one that requirements.lock names, so it was not installed: the download was damaged, or"
        " the package index serves another file under this name. Give the command again, or use another index"
        " (PIP_INDEX_URL)."
    ),
    r"(NewConnection|NameResolution|ConnectTimeout|ReadTimeout|Protocol)Error|Failed to establish a new connection"
    r"|Temporary failure in name resolution|Network is unreachable|timed out|Connection refused": (
        "there is no connection to the package index. Connect this machine to the internet, or set PIP_INDEX_URL to a"
        " package index that it reaches (HTTPS_PROXY where a proxy leads there), then give the command again."
    ),
    r"ensurepip is not available|No module named '?(venv|ensurepip)": (
        "this Python has no `venv`. Install it (Debian, Ubuntu: apt install python3-venv), then give the command again."
    ),
    r"Permission denied|Read-only file system|Errno (13|30)\b": (
        "this folder cannot be written to. Make it writable, or clone the repository into a folder of your own."
    ),
    r"No matching distribution found for (?P<package>[\w.-]+)": (
        "the package index has no ready-made {package} for Python {python} on {machine}, and nothing is compiled here."
        " All packages exist for Python {oldest} to {newest} on Linux (glibc 2.28 or later) and macOS (ARM): use one of"
        " these, as in `make PYTHON=python3.12 test`."
    ),
    r"Failed building wheel|Failed to build|subprocess-exited-with-error": (
        "a package would have to be compiled, for which something is missing here. All packages exist ready-made for"
        " Python {oldest} to {newest}: use one of these, as in `make PYTHON=python3.12 test`."
    ),
}
"""What is looked for in the output of a step that failed, in this order, and what is said of it."""


class CannotInstall(Exception):
    """Ends the installation with a sentence that says why, and what to do."""


def check_python(version):
    """Refuse a Python that is too old, and name one of this machine that is not."""
    if version >= OLDEST:
        return
    names = [f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    found = next(filter(is_there, names), "")
    remedy = f"this machine has one: `make PYTHON={found} ...`." if found else "install one of these."
    wanted = f"Python {written(OLDEST)} to {written(NEWEST)}"
    raise CannotInstall(f"Python {written(version)} is too old. equifed needs {wanted}: {remedy}")


def is_there(name):
    """Return whether there is a program of this name, and it starts."""
    return bool(shutil.which(name)) and not subprocess.run([name, "-c", ""], stderr=subprocess.DEVNULL).returncode


def check_room(free):
    """Refuse to begin where there is too little room, rather than to stop in the middle."""
    if free < ROOM:
        raise CannotInstall(
            f"there is too little room on the disk: {free / 1e9:.1f} GB are free in {ROOT}, and an installation takes"
            f" {ROOM / 1e9:.0f} GB (7 GB with a CUDA build of torch). Make room, then give the command again."
        )


def written(version):
    """Return a Python's version as people write it."""
    return ".".join(map(str, version[:2]))


def explain(output):
    """Return the sentence for a step that failed with this output."""
    for pattern, sentence in REASONS.items():
        found = re.search(pattern, output, re.IGNORECASE)
        if found:
            facts = {"python": written(sys.version_info), "oldest": written(OLDEST), "newest": written(NEWEST)}
            return sentence.format(machine=f"{platform.system()} {platform.machine()}", **facts, **found.groupdict())
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("WARNING")]
    return lines[-1].strip() if lines else "pip ended without a word."


def install_lock(python, lock):
    """Return the command that installs a lock as it stands, whatever else the package index offers."""
    return [*pip(python), "--no-deps", "--require-hashes", "-r", str(lock)]


def pip(python):
    """Return the beginning of a command that installs ready-made packages into the environment of a Python."""
    options = ["--only-binary", ":all:", "--no-user", "--disable-pip-version-check"]
    return [str(python), "-m", "pip", "install", *options]


def steps(python):
    """Return what follows on the environment: each step's title and command."""
    lock = ROOT / "requirements.lock"
    with lock.open(encoding="utf-8") as lines:
        count = sum(line[0].isalnum() for line in lines)
    editable = ["-e", str(ROOT), "-e", str(ROOT / "papers")]
    return [
        (f"{count} packages of requirements.lock, a minute or more", install_lock(python, lock)),
        ("torch", [*pip(python), "--group", f"{ROOT / 'pyproject.toml'}:torch"]),
        ("equifed and equifed-papers", [*pip(python), "--no-deps", "--no-build-isolation", *editable]),
        ("whether all fit together", [str(python), "-m", "pip", "check"]),
    ]


def carry_out(title, command, log):
    """Carry out a step, with a line that says what it is and how long it took; add what it printed to the log."""
    print(f"  {title} ... ", end="", flush=True)
    begin = time.monotonic()
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        done = subprocess.run(command, cwd=str(ROOT), **pipes)
    except OSError as error:
        print("failed", flush=True)
        text = f"{command[0]} does not start ({error}). Remove .venv, then give the command again."
        raise CannotInstall(text) from None
    output = done.stdout.decode("utf-8", "replace")
    log.append(f"$ {' '.join(command)}\n{output}")
    print("failed" if done.returncode else f"{time.monotonic() - begin:.0f} s", flush=True)
    if done.returncode:
        raise CannotInstall(explain(output))


def install(home, log):
    """Install everything into the environment `home`; one of another Python is made anew."""
    check_python(sys.version_info)
    other = not same_python(home)
    if other:
        check_room(shutil.disk_usage(str(ROOT)).free)
    print(f"Installing into {home.name}, with Python {platform.python_version()}:")
    clear = ["--clear"] if other else []
    todo = [("an environment", [sys.executable, "-m", "venv", *clear, str(home)]), *steps(home / "bin" / "python")]
    for number, (title, command) in enumerate(todo, start=1):
        carry_out(f"{number} of {len(todo)}: {title}", command, log)
    (home / "ready").touch()


def same_python(home):
    """Return whether an environment is there that this Python has made, and starts."""
    try:
        text = (home / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        return False
    number = "{}.{}.{}".format(*sys.version_info)
    return f"version = {number}" in text.splitlines() and is_there(str(home / "bin" / "python"))


def main():
    """Install, or say in a sentence why that cannot be; return the exit code."""
    home, log = ROOT / ".venv", []
    try:
        install(home, log)
    except CannotInstall as reason:
        print(f"Cannot install: {reason}{kept(log, home)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted: the same command goes on with the installation.", file=sys.stderr)
        return 130
    kept(log, home)
    return 0


def kept(log, home):
    """Write what the steps printed, and return where it is."""
    try:
        (home / "install.log").write_text("\n".join(log), encoding="utf-8")
    except OSError:
        return ""
    return f" What pip printed is in {home.name}/install.log." if log else ""


if __name__ == "__main__":
    sys.exit(main())
