"""One of every method in the registry, with numbers at which its parts matter. Also benchmarks/gpu.py uses them, where
nothing of the test suite's tools is."""

from __future__ import annotations

from equifed import methods
from equifed.protocol import Method

METHODS: tuple[Method, ...] = (
    methods.FedAvg(),
    methods.FedProx(mu=0.3),
    methods.LocalOnly(),
    methods.FedMom(beta=0.8),
    methods.FedDemon(beta0=0.8),
    methods.FedAvgLR(),
    methods.FedAvgGR(),
    methods.FedVal(),
    methods.FairFate(lambda0=0.4, rho=0.2),
    methods.FedFair(epsilon=0.01, dual_step_size=2.0),
    methods.LCO(epsilon=0.01, dual_step_size=2.0),
    methods.SeparateTraining(epsilon=0.01, dual_step_size=2.0),
    methods.AgnosticFair(steps=2),
    methods.FairFed(),
    methods.KFFL(fairness_weight=20.0, step_size=2.0),
    methods.KFFLTD(fairness_weight=20.0, step_size=2.0),
    methods.LocalKernel(fairness_weight=20.0),
    methods.CentralizedKernel(fairness_weight=20.0),
    methods.FedMinMax(adversary_rate=0.3),
    methods.SFFL(fairness_step=3.0),
    methods.FedEM(),
    methods.FCFL(epsilon=0.05),
    methods.FRL(),
    methods.E2FL(),
    methods.IFCA(),
    methods.QFFL(q=0.7),
    methods.FedFB(alpha=0.5),
    methods.FedFairGrad(dual_step_size=0.5),
    methods.FedGFT(fairness_weight=5.0),
    methods.AFL(adversary_rate=0.3),
    methods.TERM(t=2.0),
    methods.GIFAIR(fairness_weight=0.7),
    methods.PropFair(M=1.2, eps=0.4),
    methods.FedMGDA(epsilon=0.3, step_size=0.5),
    methods.CVaR(rho=0.4, tail_weight=0.7),
    methods.Scaffold(global_step_size=0.8),
    methods.FedNova(mu=0.3),
    methods.FedDyn(alpha=0.5),
    methods.FedFACT(gap=0.02, local_gap=0.05, dual_step_size=1.0),
    methods.Ditto(proximity=0.7),
    methods.FedPer(),
    methods.FedRep(head_epochs=2, final_epochs=3),
    methods.APFL(mixing=0.4),
)
