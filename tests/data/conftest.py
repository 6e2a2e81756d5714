from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ours and the datasets library's, both in a folder of their own."""
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pytest.importorskip("datasets").config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    return tmp_path / "cache"
