"""Post-processing around any method: `ef.postprocess.EqualizedOdds(ef.methods.FedAvg())`."""

from equifed.methods.postprocess import CalibratedEqualizedOdds, EqualizedOdds

__all__ = ["CalibratedEqualizedOdds", "EqualizedOdds"]
