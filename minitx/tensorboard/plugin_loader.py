"""Where TensorBoard finds the Attention tab: the entry point `tensorboard_plugins`.

An exception while TensorBoard imports an entry point ends the whole command; one while it loads a plugin is logged, and
the other tabs go on. So nothing but TensorBoard itself is imported up here.
"""

from __future__ import annotations

import argparse

from tensorboard.plugins.base_plugin import TBContext, TBLoader, TBPlugin

from minitx.tensorboard import NAME

STEPS = 2000
"""Steps of each map that TensorBoard keeps in memory unless told otherwise; its own choice would be ten."""


class AttentionLoader(TBLoader):
    """Loads the Attention tab."""

    def fix_flags(self, flags: argparse.Namespace) -> None:
        """Keep STEPS steps of each map, unless --samples_per_plugin minitx=N says how many (0: all)."""
        flags.samples_per_plugin = {NAME: STEPS, **(flags.samples_per_plugin or {})}

    def load(self, context: TBContext) -> TBPlugin:
        """The plugin."""
        from minitx.tensorboard.plugin import AttentionPlugin

        return AttentionPlugin(context)
