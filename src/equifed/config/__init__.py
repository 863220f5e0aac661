"""The configuration of a run: one TOML file in kebab-case, checked before anything is computed.

Sections [partition], [model], [local] and [method] are the dataclasses of the same name in Python, so their keys,
defaults and descriptions are written once. What a file leaves out comes from the data set's preset; `resolved` spells
everything out, and running the resolved file repeats the run exactly.
"""

from equifed.config.build import build, job_of, load_federations
from equifed.config.read import MOST_BYTES as MOST_BYTES
from equifed.config.read import load_config, named, parse_config
from equifed.config.sections import SECTIONS, Config, DataSection, FlowerSection, RunSection, identity
