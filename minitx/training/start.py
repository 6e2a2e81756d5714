"""The checkpoint that a run starts from: to resume a run, or to initialize a new one (run.init_from)."""

import hashlib
import json
import reprlib
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minitx.checkpoints import format as checkpoint
from minitx.config.errors import ConfigError
from minitx.config.registry import resolve
from minitx.config.schema import Config
from minitx.config.validation import shown
from minitx.data.tasks import TASKS, Task, generator
from minitx.data.tokenizers import Tokenizer
from minitx.inference.predictor import from_contents
from minitx.models.builder import resolved_positions
from minitx.training.folder import is_first_process, print_line, run_root

RESHAPABLE = tuple(f"model.{key}." for key in (
    "dropout", "attention_dropout", "window", "softcap", "logit_softcap", "prefix_lm", "position_ids", "position.base",
    "position.scaling", "position.factor", "window_position.base", "window_position.scaling", "window_position.factor",
))  # fmt: skip
"""Keys of `model`, or sections of it, that may change in a run initialized from weights, because no weight's shape
depends on them; with a dot at the end, since model.window is not model.window_position."""
RESUMABLE = ("data.batch_size", "data.validation_size", "data.test_size", "data.path", "data.streaming")
"""Keys of `data` that may change on resume, because neither tokens nor the held-out set depend on them. Of the other
sections, only `model` and optimizer.name may not change."""
LOCATION = ("run.name", "run.folder", "run.init_from")
UNTRAINED = ("data.path", "imports", "log.", "trainer.accelerator", "trainer.devices")  # may change with no steps left

Changes = dict[str, tuple[Any, Any]]
"""Settings that differ from the checkpoint's, by dotted key: its value, the run's value."""


@dataclass(frozen=True)
class Start:
    """A checkpoint to start from."""

    file: Path
    contents: dict[str, Any]
    config: Config  # of its run, with every default filled in
    tokenizer: Tokenizer
    resumes: bool  # True continues that run, False starts a new run with its weights
    path: str  # as the user named it
    written_ns: int  # when the file was written

    @property
    def step(self) -> int:
        """Optimizer steps done, of a run to resume."""
        return self.contents["global_step"]

    def completed(self, config: Config) -> Config:
        """Take the settings that a run shares with the checkpoint: vocabulary, tokenizer and init_from."""
        model, data = config.model, config.data
        init_from = self.config.run.init_from if self.resumes else self.path
        if not self.resumes and model.vocab_size is None:
            model = replace(model, vocab_size=self.config.model.vocab_size)
        shared = not self.resumes or (init_from and data["name"] == self.config.data["name"])
        if shared and "tokenizer" in data and "tokenizer" in self.config.data:
            data = {**data, "tokenizer": self.config.data["tokenizer"]}
        return replace(config, model=model, data=data, run=replace(config.run, init_from=init_from))

    def check(self, config: Config, task: Task) -> Changes:
        """Compare the run's settings with the checkpoint's.

        Raises:
            ConfigError: a setting that may not change has changed.
        """
        if self.resumes:
            return self._check_resumed(config, task)
        found = {key: pair for key, pair in changes(self.config, config).items() if key.startswith("model.")}
        for key, (old, new) in found.items():
            if not f"{key}.".startswith(RESHAPABLE):
                differs = f"{key} is {shown(old)} in the checkpoint and {shown(new)} here"
                raise ConfigError(f"--init_from: {differs}; leave the key out of the config to take the checkpoint's")
        return found

    def _check_resumed(self, config: Config, task: Task) -> Changes:
        found = {key: pair for key, pair in changes(self.config, config).items() if key not in LOCATION}
        folder, max_steps = self.file.parent, config.trainer.max_steps
        advice = f"start a new run, or initialize one with these weights: --init_from {folder}"
        for key, (old, new) in found.items():
            if key.startswith(("model.", "data.", "optimizer.name")) and key not in RESUMABLE:
                raise ConfigError(f"--resume: {folder} was trained with {key} {shown(old)}, not {shown(new)}; {advice}")
        if not is_on_data(self.contents, self.tokenizer, task, "data.batch_size" in found):
            raise ConfigError(f"--resume: the data differs from the data {folder} was trained on; {advice}")
        trained = {key: pair for key, pair in found.items() if not key.startswith(UNTRAINED)}
        if trained and max_steps <= self.step:
            needed = f"changed settings need a trainer.max_steps above {self.step:,}: {described(trained)}"
            if trained == {"trainer.max_steps": (self.step, max_steps)}:
                needed = f"trainer.max_steps must be at least {self.step:,}, got {max_steps:,}"
            raise ConfigError(f"--resume: {folder} has done {self.step:,} steps already; {needed}")
        return found

    def finished(self, config: Config) -> dict[str, Any] | None:
        """The figures of a run to resume whose steps are all done; None if steps are left, or it was not evaluated."""
        if self.step < config.trainer.max_steps:
            return None
        results = {}
        with suppress(OSError, ValueError, TypeError, RecursionError):  # missing, or damaged
            results = dict(json.loads(self.file.with_name("results.json").read_bytes()))
        if results.get("steps") != self.step:  # or of the run before it was extended: it is evaluated again
            return None
        if is_first_process():
            done = f"{self.file.parent} has done its {self.step:,} steps already"
            print_line(f"--resume: {done}; a larger trainer.max_steps continues, unless trainer.stop_when ended it")
        return results


def find_start(config: Config, resume: bool, init_from: str | None) -> Start | None:
    """Read the checkpoint that a run starts from, for resolve; None for random weights.

    Raises:
        ConfigError: it is missing or damaged; the message names an alternative.
    """
    if resume and init_from is not None:
        raise ConfigError("--init_from starts a new run and --resume continues an old one: give one of them")
    if resume:
        root = run_root(config)
        try:
            file = checkpoint.find(root, "last")
        except ConfigError:
            raise ConfigError(f"--resume: there is no {root}/vN/last.ckpt to resume from") from None
        try:
            return _read(file, True, str(root))
        except ConfigError as error:
            raise ConfigError(f"--resume: {error}; {alternative(file)}") from error.__cause__
    if (path := config.run.init_from if init_from is None else init_from) is not None:
        try:
            return _read(checkpoint.find(path), False, path)
        except ConfigError as error:
            raise ConfigError(f"--init_from: {error}") from error.__cause__
    return None


def _read(file: Path, resumes: bool, path: str) -> Start:
    """Read a checkpoint, and check that its parts fit together."""
    written_ns = file.stat().st_mtime_ns
    contents = checkpoint.read(file)
    if resumes and "optimizer_states" not in contents:
        raise ConfigError(f"{file} holds weights alone, no training state to resume")
    if resumes and not (type(step := contents.get("global_step")) is int and 0 <= step < 2**63):
        raise ConfigError(f"{file} is damaged: its global_step must be a number of steps, got {reprlib.repr(step):.60}")
    if resumes and repr(sampling := contents.get("sampling", 1)) not in ("1", "2"):
        raise ConfigError(f"{file} {checkpoint.MISFIT}: its sampling must be 1 or 2, got {reprlib.repr(sampling):.60}")
    predictor = from_contents(contents, file)
    config = predictor.config
    model = replace(resolved_positions(config.model), vocab_size=predictor.model.head.out_features)
    config = replace(config, data=resolve(TASKS, config.data, "data"), model=model)
    return Start(file, contents, config, predictor.tokenizer, resumes, path, written_ns)


def alternative(damaged: Path) -> str:
    """Advice for a damaged or missing last.ckpt."""
    if steps := sorted(damaged.parent.glob("step_*.ckpt")):
        return f"to resume from an earlier step, copy {steps[-1].name} to last.ckpt in the same folder"
    if (best := damaged.with_name("best.ckpt")).is_file():
        return f"to start a new run from the weights of the best validation: --init_from {best}"
    return "there is no other checkpoint in its folder: start a new run"


def flat(section: dict[str, Any], key: str = "") -> dict[str, Any]:
    """The values of a config by dotted key."""
    found: dict[str, Any] = {}
    for name, value in section.items():
        found |= flat(value, f"{key}{name}.") if isinstance(value, dict) else {f"{key}{name}": value}
    return found


def changes(before: Config, now: Config) -> Changes:
    """Differences of two configs."""
    old, new = flat(before.to_dict()), flat(now.to_dict())
    return {key: (old.get(key), new.get(key)) for key in old | new if old.get(key) != new.get(key)}


def described(found: Changes) -> str:
    """Changed settings in a line: trainer.max_steps 500 -> 800, optimizer.lr 0.005 -> 0.001."""
    return ", ".join(f"{key} {shown(old)} -> {shown(new)}" for key, (old, new) in found.items())


def data_digest(task: Task) -> str:
    """Hash a few training examples, and a corpus: other data, or another way of sampling, has another digest."""
    tensors = b"".join(tensor.numpy().tobytes() for tensor in task.batch(generator(0), 8))
    return hashlib.sha256(tensors).hexdigest()[:16] + getattr(task, "fingerprint", "")


def is_on_data(contents: dict[str, Any], tokenizer: Tokenizer, task: Task, resized: bool = False) -> bool:
    """Whether the run of a checkpoint with this tokenizer was trained on the data of the task; `resized` in batches of
    another size, with which translation may sample other pairs: of a corpus, its own hash decides."""
    digest, now = str(contents.get("data_digest", "")), data_digest(task)  # absent from or shorter in old checkpoints
    same = now.startswith(digest) or (resized and now[16:] == digest[16:] != "")
    return same and task.vocabulary.to_dict() == tokenizer.to_dict()


def resume_loops(contents: dict[str, Any], accumulate: int) -> None:
    """Set Lightning's loops in a checkpoint to continue after its last whole step. They count batches, whose number per
    step (`accumulate`) may have changed; and after the last epoch of a completed run Lightning would begin another."""

    def progress(started: int, done: int, **more: bool) -> dict[str, Any]:
        counters = {"ready": started, "started": started, "processed": done, "completed": done}
        return {"total": counters, "current": counters, **more}

    step = contents["global_step"]
    steps = progress(step, step)
    contents["loops"] = {"fit_loop": {
        "epoch_progress": progress(1, 0),
        "epoch_loop.state_dict": {"_batches_that_stepped": step},
        "epoch_loop.batch_progress": progress(step * accumulate, step * accumulate, is_last_batch=False),
        "epoch_loop.automatic_optimization.optim_progress": {"optimizer": {"step": steps, "zero_grad": steps}},
        # One started and not completed makes Lightning run the validation that was due at the last save.
        "epoch_loop.val_loop.batch_progress": progress(int(contents.get("validated") is False), 0, is_last_batch=False),
    }}  # fmt: skip
