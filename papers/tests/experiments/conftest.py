"""Programs that share work out, as in the library's tests of studies."""

from studies.conftest import place, spawn  # noqa: F401
