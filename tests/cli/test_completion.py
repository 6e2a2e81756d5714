"""Shell completion in real shells: commands, keys, values, bundled configs and files."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from shtab import SUPPORTED_SHELLS

from minitx.cli.completion import script
from minitx.cli.main import COMMANDS, main
from minitx.data.tasks import TASKS
from minitx.nn import POSITIONS

ASK = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()
complete_with=$(complete -p minitx | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$complete_with minitx "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with minitx.bash and the others."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in SUPPORTED_SHELLS:
        with (folder / f"minitx.{shell}").open("w") as file, pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdout", file)
            main(["completion", shell])
    return folder


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(("words", "expected"), [
    ("minitx tr", {"train"}), ("minitx train --trainer.max", {"--trainer.max_steps"}),
    ("minitx train --data.symb", {"--data.symbols"}), ('minitx train --model.position.name ""', {*POSITIONS}),
    ('minitx sweep --data.name ""', {*TASKS}),
    ("minitx train --model.architecture enc", {"encoder_decoder", "encoder_only"}),
    ("minitx generate --num_b", {"--num_beams"}), ("minitx generate --trainer", set()),
    ("minitx average revers", {"reversed_by_me.yaml"}),
    ("minitx train --config revers", {"reverse", "reverse_encoder", "reversed_by_me.yaml"}),
])  # fmt: skip
def test_completion_in_bash(words: str, expected: set[str], scripts: Path) -> None:
    (scripts / "reversed_by_me.yaml").touch()
    command = ["bash", "-c", ASK.format(script="./minitx.bash", words=words)]
    found = set(subprocess.run(command, capture_output=True, text=True, cwd=scripts, check=True).stdout.split())
    assert expected <= found if "--config" in words else found == expected


@pytest.mark.parametrize("shell", SUPPORTED_SHELLS)
def test_a_script_that_its_shell_can_read(shell: str, scripts: Path) -> None:
    text = (scripts / f"minitx.{shell}").read_text()
    assert "position_ids" in text
    assert all(command in text for command in COMMANDS)
    if shutil.which(shell) and shell != "tcsh":  # tcsh cannot check without running
        subprocess.run([shell, "-n", f"minitx.{shell}"], cwd=scripts, check=True)


def test_classes_of_imported_files_are_read_from_the_registries() -> None:
    read, registered = (script("zsh", {"train": COMMANDS["train"].parser("train")}, own) for own in (False, True))
    assert sorted(re.findall(r"[\w.]+", read)) == sorted(re.findall(r"[\w.]+", registered))
