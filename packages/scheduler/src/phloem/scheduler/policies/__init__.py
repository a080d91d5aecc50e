"""Orders of admission: the contract (`base`), small classes that keep it, and their names.

A policy sees waiting requests and an `Outlook`, and changes neither. Fairness between tenants and
priorities come on top of any of them (`phloem.scheduler.ordering`).
"""

from phloem.scheduler.policies.base import Outlook, SchedulePolicy
from phloem.scheduler.policies.registry import create_policy, policy_names

__all__ = ["Outlook", "SchedulePolicy", "create_policy", "policy_names"]
