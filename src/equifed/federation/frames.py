"""Tables of other libraries as data frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from equifed.errors import ConfigError
from equifed.federation.reading import with_text_names


def frame_of(table: Any) -> pd.DataFrame:
    """A data frame of a table of pandas, Arrow, Hugging Face or another library that can make one; columns are named by
    text. Of what is not pandas, the index is dropped, which may hold people's names."""
    if isinstance(table, pd.DataFrame):
        return with_text_names(table)
    if isinstance(table, Mapping):
        names = ", ".join(repr(str(name)) for name in list(table)[:5])
        raise ConfigError(
            f"A table is needed, got {type(table).__name__} with the entries {names}. Choose one of them."
        )
    if not hasattr(table, "to_pandas"):
        raise ConfigError(
            f"A table is needed: a data frame, a pyarrow.Table or a datasets.Dataset, got {type(table).__name__}."
        )
    frame = with_text_names(table.to_pandas()).reset_index(drop=True)
    for name, feature in _classes(table):
        codes = frame[name]
        known = codes[codes.notna() & (codes >= 0)].astype(int)  # Hugging Face writes -1 where there is no label
        frame[name] = pd.Series(feature.int2str(known.tolist()), index=known.index, dtype=object)
    return frame


def _classes(table: Any) -> Iterator[tuple[str, Any]]:
    """The columns of a Hugging Face data set whose numbers stand for names."""
    features = getattr(table, "features", None)
    for name, feature in features.items() if isinstance(features, Mapping) else ():
        if hasattr(feature, "int2str"):
            yield str(name), feature
