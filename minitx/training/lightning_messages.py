"""Messages of Lightning that do not apply here."""

import logging
import warnings


def silence_lightning() -> None:
    """Hide Lightning's messages that repeat ours, or that do not apply to batches sampled by number."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*resuming from a checkpoint that ended before the epoch ended.*",
        ".*callbacks used to create the checkpoint need to be provided.*",  # settings may change on resume
        ".*It is recommended to use .self.log.*sync_dist.*",  # figures are summed before they are logged
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*isinstance.treespec, LeafSpec.*",
        ".*smaller than the logging interval.*",
    ):
        warnings.filterwarnings("ignore", message)
