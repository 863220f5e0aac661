"""equifed's research record: the papers' experiments beside their published numbers, and the benchmark of all methods.

It stands on equifed, which knows nothing of it but that it is an installed package with commands.
"""

from pathlib import Path

HOME = Path(__file__).parent
"""Where this package is: a version of a number of the record is that of equifed's files and of these."""
