"""The contents of the offline page, without a browser; in one: tensorboard/test_offline_page.py."""

import html
import re
from pathlib import Path

import pytest

from minitx.interpret.attention_maps import AttentionMaps
from minitx.interpret.encoded_maps import by_tag
from minitx.interpret.html import page
from minitx.tensorboard import map_format
from predictors import built

MAPS = built().attend(["3 1", "5"])


def test_without_maps_or_with_two_of_one_name_no_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no attention"):
        AttentionMaps({"source": [["a"]]}).save_html(tmp_path / "none.html")
    with pytest.raises(ValueError, match="choose another"):
        MAPS.save_html(tmp_path / "none.html", beside={MAPS.name: MAPS})
    assert not list(tmp_path.iterdir())
    assert AttentionMaps({})._repr_html_() == "<p>no attention maps</p>"


def test_a_notebook_shows_the_page_in_a_sandboxed_frame() -> None:
    frame = r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts allow-downloads" .*></iframe>'
    (shown,) = re.findall(frame, MAPS._repr_html_())
    assert html.unescape(shown) == page({MAPS.name: by_tag(MAPS)})


def test_files_of_the_page_are_small_name_no_address_and_define_no_name_twice() -> None:
    """Nor do they parse markup: tests/test_sources.py."""
    script = page({"maps": by_tag(MAPS)}).rpartition("<script>")[2]
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script, re.MULTILINE)
    assert len(names) == len({*names}) > 50
    for file in (Path(map_format.__file__).parent / "static").iterdir():
        text = file.read_text()
        assert text.count("\n") <= 350, file
        assert max(map(len, text.splitlines())) <= 120, file
        assert not re.search(r"https?:", text), file
