"""Add-ons: what the field puts on top of an algorithm against imbalance, one file each.

An algorithm calls its add-on at fixed points (:class:`AddOn` lists them) and knows none by name. To
add one, write a file with a frozen config (a subclass of :class:`AddOnConfig`) and a subclass of
:class:`AddOn`, and list it in ``ADDONS``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from semigpc.addons.abc import ABC, ABCConfig
from semigpc.addons.acr import ACR, ACRConfig
from semigpc.addons.base import AddOn, AddOnConfig, ExtraLoss, Step, Survey
from semigpc.addons.cdmad import CDMAD, CDMADConfig
from semigpc.addons.cossl import CoSSL, CoSSLConfig
from semigpc.addons.crest import CReST, CReSTConfig, CReSTPlus, CReSTPlusConfig
from semigpc.addons.darp import DARP, DARPConfig
from semigpc.addons.daso import DASO, DASOConfig
from semigpc.addons.debiaspl import DebiasPL, DebiasPLConfig
from semigpc.addons.rebalancing import (
    BalancedSampling,
    BalancedSamplingConfig,
    Deferred,
    DeferredConfig,
    EffectiveNumber,
    EffectiveNumberConfig,
    LogitAdjustment,
    LogitAdjustmentConfig,
)
from semigpc.addons.saw import SAW, SAWConfig
from semigpc.addons.simpro import SimPro, SimProConfig
from semigpc.types import Task


class AddOnEntry(NamedTuple):
    """An add-on's config, how it is made from (config, task), and its name in tables."""

    config: type[Any]
    build: Callable[[Any, Task], AddOn]
    label: str


ADDONS: dict[str, AddOnEntry] = {
    "none": AddOnEntry(AddOnConfig, AddOn, ""),
    "darp": AddOnEntry(DARPConfig, DARP, "DARP"),
    "daso": AddOnEntry(DASOConfig, DASO, "DASO"),
    "saw": AddOnEntry(SAWConfig, SAW, "SAW"),
    "abc": AddOnEntry(ABCConfig, ABC, "ABC"),
    "debiaspl": AddOnEntry(DebiasPLConfig, DebiasPL, "DebiasPL"),
    "cossl": AddOnEntry(CoSSLConfig, CoSSL, "CoSSL"),
    "acr": AddOnEntry(ACRConfig, ACR, "ACR"),
    "cdmad": AddOnEntry(CDMADConfig, CDMAD, "CDMAD"),
    "simpro": AddOnEntry(SimProConfig, SimPro, "SimPro"),
    "balanced_sampling": AddOnEntry(BalancedSamplingConfig, BalancedSampling, "balanced sampling"),
    "effective_number": AddOnEntry(EffectiveNumberConfig, EffectiveNumber, "effective number"),
    "logit_adjustment": AddOnEntry(LogitAdjustmentConfig, LogitAdjustment, "logit adjustment"),
    "deferred": AddOnEntry(DeferredConfig, Deferred, "deferred re-weighting"),
    "crest": AddOnEntry(CReSTConfig, CReST, "CReST"),
    "crest_plus": AddOnEntry(CReSTPlusConfig, CReSTPlus, "CReST+"),
}

__all__ = [
    "ABC",
    "ACR",
    "ADDONS",
    "CDMAD",
    "DARP",
    "DASO",
    "SAW",
    "ABCConfig",
    "ACRConfig",
    "AddOn",
    "AddOnConfig",
    "AddOnEntry",
    "BalancedSampling",
    "BalancedSamplingConfig",
    "CDMADConfig",
    "CReST",
    "CReSTConfig",
    "CReSTPlus",
    "CReSTPlusConfig",
    "CoSSL",
    "CoSSLConfig",
    "DARPConfig",
    "DASOConfig",
    "DebiasPL",
    "DebiasPLConfig",
    "Deferred",
    "DeferredConfig",
    "EffectiveNumber",
    "EffectiveNumberConfig",
    "ExtraLoss",
    "LogitAdjustment",
    "LogitAdjustmentConfig",
    "SAWConfig",
    "SimPro",
    "SimProConfig",
    "Step",
    "Survey",
]
