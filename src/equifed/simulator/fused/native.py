"""Compiled functions, stored on disk as machine code.

numba compiles a function once per machine, which takes some 10 s. Every later process loads the machine code by
llvmlite alone, because importing numba and loading its cache takes longer than a short simulation.
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
"""Kind of a parameter: its NumPy type, and the number of axes of an array; 0 for a single number."""
NUMBERS: dict[type[Any], Any] = {np.int64: ctypes.c_int64, np.float32: ctypes.c_float}
"""Types of single numbers."""


class Native:
    """The compiled function `name` of the sibling module `module`. It must return nothing and allocate nothing, because
    machine code cannot call Python or numba."""

    def __init__(self, module: str, name: str, *kinds: Kind) -> None:
        self.module, self.name, self.kinds = module, name, kinds
        self._expected = [(np.dtype(kind), axes) for kind, axes in kinds]
        self._engines: list[Any] = []
        """Engines that own loaded code and so must live as long as this function. Two threads may both load it."""

    def bind(self, *arguments: Any) -> Callable[..., None]:
        """Bind the first arguments; the remaining ones are numbers. The function releases Python's lock."""
        values, shapes = [], []
        for argument, (dtype, axes) in zip(arguments, self._expected, strict=False):
            if axes:
                if argument.dtype != dtype or argument.ndim != axes or not argument.flags.c_contiguous:
                    raise TypeError(f"{self.name} does not accept an array of {argument.dtype} {argument.shape} there.")
                shapes.extend(argument.shape)
                argument = argument.ctypes.data
            values.append(argument)
        extents = np.array(shapes, np.int64)
        function = partial(self._function, extents.ctypes.data, *values)

        def call(*rest: Any, kept: Any = (arguments, extents)) -> None:  # keeps the memory at these addresses alive
            function(*rest)

        return call

    @cached_property
    def _function(self) -> Callable[..., None]:
        """The loaded function. Its first argument is the address of the extents of all arrays."""
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
        """Return the object file: from the disk if it has a valid one, otherwise compiled now."""
        file = f"{self.module}.{self.name}-{self._fingerprint()}.o"
        for folder in _folders():
            try:
                stored = (folder / file).read_bytes()
            except OSError:
                continue
            if hashlib.sha256(stored[32:]).digest() == stored[:32]:  # a damaged file is made again
                return stored[32:]
        code = self._compile(target)
        for folder in _folders():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                write_atomic(folder / file, hashlib.sha256(code).digest() + code)
                break
            except OSError:  # if no folder is writable, every process compiles
                continue
        return code

    def _fingerprint(self) -> str:
        """Return a fingerprint of all that the machine code depends on: sources, compiler, processor."""
        import llvmlite  # each numba has its own llvmlite

        digest = hashlib.sha256(repr((llvmlite.__version__, self.kinds, _processor())).encode())
        for source in sorted(Path(__file__).parent.glob("cpu*.py")):
            digest.update(source.read_bytes())
        return digest.hexdigest()[:16]

    def _compile(self, target: Any) -> bytes:
        """Compile the function by numba; return the object file."""
        from llvmlite import binding as llvm
        from numba import carray, cfunc, from_dtype, types

        # numba can pass arrays to a function from outside only by their addresses
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
        # numba's code for exceptions and reference counts is never reached, because nothing raises or allocates
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
    """Yield the folders for machine code: the package's, then the user's cache."""
    yield Path(__file__).parent / "__pycache__"
    yield cache_home() / "kernels"
