"""The policy update: group advantages, masks, datums, losses and their aggregation."""

from retool.ppo.update import PPO, Trainer, UpdateResult

__all__ = ["PPO", "Trainer", "UpdateResult"]
