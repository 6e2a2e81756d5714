"""The entry point `tensorboard_plugins` of the Attention tab.

An exception while an entry point is imported ends the tensorboard command; one while a plugin is loaded is logged, and
the other tabs work. This file therefore imports TensorBoard and the plugin's name alone.
"""

import argparse

from tensorboard.plugins.base_plugin import TBContext, TBLoader, TBPlugin

from minitx.tensorboard import NAME

STEPS = 2000
"""Steps of each map that TensorBoard keeps in memory by default; its own default is ten."""


class AttentionLoader(TBLoader):
    """Loads the Attention tab."""

    def fix_flags(self, flags: argparse.Namespace) -> None:
        """Keep STEPS steps of each map, unless --samples_per_plugin minitx=N is given (0: all)."""
        flags.samples_per_plugin = {NAME: STEPS, **(flags.samples_per_plugin or {})}

    def load(self, context: TBContext) -> TBPlugin:
        """The plugin."""
        from minitx.tensorboard.plugin import AttentionPlugin

        return AttentionPlugin(context)
