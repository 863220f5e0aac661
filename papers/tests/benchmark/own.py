"""A method of somebody's own."""

from equifed.methods import FedAvg


class Mine(FedAvg):
    """FedAvg by another name."""

    name = "benchmark.own:Mine"
