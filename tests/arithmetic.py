"""Other arithmetic: what a processor with other instructions makes of the same sums, as far as this one imitates it.

Sums in another order, a fused multiply-add or none, another polynomial for `exp`: each rounds otherwise. Libraries
choose by the processor when they are loaded, so another arithmetic is an environment for a new process.

`python tests/arithmetic.py COMMAND...` gives a command in every arithmetic in turn, and fails if one of them fails.
"""

from __future__ import annotations

import os
import subprocess
import sys


def scalar() -> dict[str, str]:
    """Return the environment of a process that uses none of the wide instructions."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    wide = [name for name in __cpu_dispatch__ if __cpu_features__.get(name)]
    return {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "NPY_DISABLE_CPU_FEATURES": " ".join(wide),
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
    }


def arithmetics() -> dict[str, dict[str, str]]:
    """Return the environments that this processor has the instructions for, by name; the last is its own."""
    wider = {
        "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
        "avx512": {"ATEN_CPU_CAPABILITY": "avx512"},
    }
    native = subprocess.run([sys.executable, "-c", NATIVE], env=NEITHER, capture_output=True, text=True, check=True)
    names = [*wider]
    here = names[: names.index(name) + 1] if (name := native.stdout.strip().lower()) in names else []
    return {"default": scalar(), **{name: wider[name] for name in here}}


NATIVE = "import torch; print(torch.backends.cpu.get_cpu_capability())"
NEITHER = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
"""This process may itself imitate another processor, which the question must not."""


def main(command: list[str]) -> int:
    """Give the command in every arithmetic, and return 1 if it failed in one."""
    failed = []
    for name, environment in arithmetics().items():
        print(f"Arithmetic: {name}", flush=True)
        if subprocess.run(command, env=NEITHER | environment).returncode:
            failed.append(name)
    print(f"Failed with the arithmetic {', '.join(failed)}." if failed else "The same in every arithmetic.")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
