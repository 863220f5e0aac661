"""Compiled functions that are kept on disk as machine code.

numba compiles a function once per machine, which takes some 10 s. Every later process loads the machine code by
llvmlite alone: importing numba, and having it load its own cache, takes longer than a short simulation.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import re
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from equifed.files import cache_home, write_atomic

Kind = tuple[type[Any], int]
"""What a parameter is: a NumPy type, and how many axes an array of them has; 0: it is one number."""
NUMBERS: dict[type[Any], Any] = {np.int64: ctypes.c_int64, np.float32: ctypes.c_float}
"""Types of single numbers."""


class Native:
    """The function `name` of the sibling module `module`, which numba can compile, returns nothing and allocates
    nothing: machine code has no Python and no numba to call."""

    def __init__(self, module: str, name: str, *kinds: Kind) -> None:
        self.module, self.name, self.kinds = module, name, kinds
        self._expected = [(np.dtype(kind), axes) for kind, axes in kinds]
        self._engines: list[Any] = []
        """Which own loaded code: it lives as long as this function. Two threads may both load it."""

    def given(self, *arguments: Any) -> Callable[..., None]:
        """The function with these first arguments; the others are numbers. It lets go of Python's lock."""
        values, shapes = [], []
        for argument, (dtype, axes) in zip(arguments, self._expected, strict=False):
            if axes:
                if argument.dtype != dtype or argument.ndim != axes or not argument.flags.c_contiguous:
                    raise TypeError(f"{self.name} takes no array of {argument.dtype} {argument.shape} there.")
                shapes.extend(argument.shape)
                argument = argument.ctypes.data
            values.append(argument)
        extents = np.array(shapes, np.int64)
        function = partial(self._function, extents.ctypes.data, *values)

        def call(*rest: Any, kept: Any = (arguments, extents)) -> None:  # the addresses are theirs
            function(*rest)

        return call

    @cached_property
    def _function(self) -> Callable[..., None]:
        """The loaded code. Its first argument is where the extents of all arrays are."""
        from llvmlite import binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_default_triple().create_target_machine(
            **_processor(), opt=3, reloc="default", codemodel="jitdefault", jit=True
        )
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
        self._engines.append(engine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(self._code(target)))
        engine.finalize_object()
        address = engine.get_function_address(self.name)
        parameters = [ctypes.c_void_p if axes else NUMBERS[dtype] for dtype, axes in self.kinds]
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p, *parameters)(address)

    def _code(self, target: Any) -> bytes:
        """An object file: from the disk where one is that fits, made now where not."""
        file = f"{self.module}.{self.name}-{self._fingerprint()}.o"
        for folder in _folders():
            try:
                stored = (folder / file).read_bytes()
            except OSError:
                continue
            if hashlib.sha256(stored[32:]).digest() == stored[:32]:  # what is damaged is made again
                return stored[32:]
        code = self._compiled(target)
        for folder in _folders():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                write_atomic(folder / file, hashlib.sha256(code).digest() + code)
                break
            except OSError:  # where nothing can be written, every process compiles
                continue
        return code

    def _fingerprint(self) -> str:
        """Of all that the machine code depends on: the sources, the compiler, the processor."""
        import llvmlite  # each numba has its own llvmlite

        told = hashlib.sha256(repr((llvmlite.__version__, self.kinds, _processor())).encode())
        for source in sorted(Path(__file__).parent.glob("cpu*.py")):
            told.update(source.read_bytes())
        return told.hexdigest()[:16]

    def _compiled(self, target: Any) -> bytes:
        """The object file, made by numba."""
        from llvmlite import binding as llvm
        from numba import carray, cfunc, from_dtype, types

        # numba has no way to give arrays to a function from outside but by their addresses
        names = [f"p{number}" for number in range(len(self.kinds))]
        parameters: list[Any] = [types.CPointer(types.int64)]
        passed, extent = [], 0
        for name, (dtype, axes) in zip(names, self.kinds, strict=True):
            number = from_dtype(np.dtype(dtype))
            parameters.append(types.CPointer(number) if axes else number)
            shape = "".join(f"extents[{extent + axis}], " for axis in range(axes))
            passed.append(f"carray({name}, ({shape}))" if axes else name)
            extent += axes
        lines = f"def entry(extents, {', '.join(names)}):\n    function({', '.join(passed)})"
        function = getattr(importlib.import_module(f"{__package__}.{self.module}"), self.name)
        scope: dict[str, Any] = {"carray": carray, "function": function}
        exec(lines, scope)
        made = cfunc(types.void(*parameters), error_model="numpy")(scope["entry"])
        text = made.inspect_llvm().replace(made.native_name, self.name)
        assert "numba.dynamic.globals" not in text, "an object of this process"
        # numba's parts for exceptions and reference counts are there but never reached: nothing raises or allocates
        process = ctypes.CDLL(None)
        for name in [f.name for f in llvm.parse_assembly(text).functions if f.is_declaration]:
            if not name.startswith("llvm.") and not hasattr(process, name):
                trap = r"\ndefine internal \1 {\n  call void @llvm.trap()\n  unreachable\n}"
                text = re.sub(rf"\ndeclare ([^\n]*@{re.escape(name)}\([^)\n]*\))[^\n]*", trap, text)
        module = llvm.parse_assembly(f"{text}\ndeclare void @llvm.trap()\n")
        module.verify()
        return target.emit_object(module)


def _processor() -> dict[str, str]:
    """Return the processor that machine code is made for: this one, unless numba's settings name another."""
    from llvmlite import binding as llvm

    cpu, features = os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:
        features = "" if cpu == "generic" else llvm.get_host_cpu_features().flatten()
    return {"cpu": cpu or llvm.get_host_cpu_name(), "features": features}


def _folders() -> Iterator[Path]:
    """Where machine code may lie: beside the package, or with the user's files."""
    yield Path(__file__).parent / "__pycache__"
    yield cache_home() / "kernels"
