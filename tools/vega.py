"""Write the copy of Vega that pages carry, from the version of vl-convert that requirements.lock pins.

    .venv/bin/python tools/vega.py

Pages and figures are then drawn by the same Vega. A test compares the copy with what this makes.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import vl_convert

FOLDER = Path(__file__).parents[1] / "src" / "equifed" / "charts"
VEGA_LITE = "6.4"


def bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, with their versions and licences in its first line."""
    versions = (
        f"Vega {vl_convert.get_vega_version()}, Vega-Lite {VEGA_LITE}, Vega-Embed {vl_convert.get_vega_embed_version()}"
    )
    notice = f"/* {versions}, as bundled by vl-convert {vl_convert.__version__}. BSD-3-Clause: see vega.LICENSE.txt */"
    return f"{notice}\n{vl_convert.javascript_bundle(vl_version=VEGA_LITE)}"


if __name__ == "__main__":
    (FOLDER / "vega.js.gz").write_bytes(gzip.compress(bundle().encode(), compresslevel=9, mtime=0))
