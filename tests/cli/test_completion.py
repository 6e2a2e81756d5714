"""Shell completion in real shells: commands, keys, values, bundled configs and files."""

import shutil
import subprocess
from pathlib import Path

import pytest

from minitx.cli.completion import SHELLS
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
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash here")
    path = tmp_path_factory.mktemp("completion") / "minitx.bash"
    with path.open("w") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", file)
        main(["completion", "bash"])
    return path


def completed(script: Path, words: str) -> set[str]:
    done = subprocess.run(
        ["bash", "-c", ASK.format(script=script, words=words)],
        capture_output=True,
        text=True,
        cwd=script.parent,
        check=True,
    )
    return set(done.stdout.split())


def test_commands(bash_script: Path) -> None:
    assert set(COMMANDS) <= completed(bash_script, 'minitx ""')
    assert completed(bash_script, "minitx tr") == {"train"}


def test_keys_and_values(bash_script: Path) -> None:
    assert completed(bash_script, "minitx train --trainer.max") == {"--trainer.max_steps"}
    assert completed(bash_script, "minitx train --data.symb") == {"--data.symbols"}
    assert completed(bash_script, 'minitx train --model.position.name ""') == set(POSITIONS)
    assert completed(bash_script, 'minitx sweep --data.name ""') == set(TASKS)
    assert completed(bash_script, "minitx train --model.arch") == {"--model.architecture"}
    assert completed(bash_script, "minitx train --model.architecture enc") == {"encoder_decoder", "encoder_only"}
    assert completed(bash_script, "minitx generate --num_b") == {"--num_beams"}
    assert not completed(bash_script, "minitx generate --trainer")


def test_a_config_is_a_name_or_a_file(bash_script: Path) -> None:
    (bash_script.parent / "reversed_by_me.yaml").touch()
    found = completed(bash_script, "minitx train --config rev")
    assert {"reverse", "reverse_encoder", "reversed_by_me.yaml"} <= found


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_that_its_shell_can_read(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", shell])
    script = capsys.readouterr().out
    assert "position_ids" in script
    if shutil.which(shell) and shell != "tcsh":  # tcsh cannot check without running
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", "script"], cwd=tmp_path, check=True)


def test_an_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["completion", "cmd.exe"])
    assert "shell must be one of bash" in capsys.readouterr().err
