"""``entrepot store`` on a folder: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from entrepot.cli import main
from entrepot.store import Store, digest_of
from entrepot.store.layout import blob_key, key_of


def run(capfd: pytest.CaptureFixture[str], *line: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``entrepot store ...``."""
    with pytest.raises(SystemExit) as ended:
        main(["store", *line])
    said = capfd.readouterr()
    code = ended.value.code
    assert isinstance(code, int | None)
    return code or 0, said.out, said.err


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with two trials, a blob that one of them names, and one that nothing needs."""
    with Store(tmp_path / "store") as store:
        store.put(b"nobody needs this")
        curve = store.put(b"\x00curve\xff")
        store.claim("spam/trial/7/0", curve, {"state": "done", "score": "0.5"})
        store.claim("spam/trial/12/0", meta={"state": "running"})
        store.claim("eggs/best")
    return tmp_path / "store"


# --- init -------------------------------------------------------------------------------


def test_a_folder_becomes_a_store_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new"
    assert run(capfd, "init", str(path)) == (0, f"made a store at {path}\n", "")
    assert (path / "store.json").exists()
    assert run(capfd, "init", str(path)) == (0, f"{path} is a store already\n", "")
    code, out, _ = run(capfd, "init", f"file://{path}", "--json")
    assert (code, objects(out)) == (
        0,
        [{"event": "store", "url": f"file://{path}", "made": False}],
    )


def test_a_folder_in_no_folder_is_not_made(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capfd, "init", str(tmp_path / "no" / "folder"), "--json")
    assert code == 1
    assert err.startswith("error (store_unreachable): there is no folder")
    assert objects(out)[0]["code"] == "store_unreachable"


def test_what_is_no_store_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, "init", "ftp://host/x")
    assert (code, err.split(":")[0]) == (1, "error (configuration)")


# --- ls ---------------------------------------------------------------------------------


def test_records_are_listed_sorted_and_by_prefix(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capfd, "ls", str(folder))
    assert (code, err) == (0, "")
    names = [line.split()[0] for line in out.splitlines()]
    assert names == ["eggs/best", "spam/trial/12/0", "spam/trial/7/0"]
    code, out, _ = run(capfd, "ls", str(folder), "spam/trial/7")
    (line,) = out.splitlines()
    assert line.endswith("state=done score=0.5")


def test_records_are_listed_as_json(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capfd, "ls", str(folder), "spam/trial/7/", "--json")
    (record,) = objects(out)
    assert record["name"] == "spam/trial/7/0"
    assert record["digest"] == digest_of(b"\x00curve\xff")
    assert record["meta"] == {"state": "done", "score": "0.5"}


def test_what_cannot_be_read_is_told_beside_the_rest(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / key_of("spam/trial/7/0")).write_bytes(b"")
    code, out, err = run(capfd, "ls", str(folder))
    assert code == 0
    assert len(out.splitlines()) == 2
    assert err == f"cannot be read (torn): {key_of('spam/trial/7/0')}\n"


def test_a_name_cannot_play_tricks_on_a_terminal(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Store(folder) as store:
        store.claim("a\x1b[2J\nb", meta={"c": "\x1b[31m"})
    _, out, _ = run(capfd, "ls", str(folder), "a")
    assert len(out.splitlines()) == 1
    assert "\x1b" not in out


# --- cat --------------------------------------------------------------------------------


def test_a_record_is_printed_as_it_is_stored(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capfd, "cat", str(folder), "spam/trial/7/0")
    assert code == 0
    assert out == (folder / key_of("spam/trial/7/0")).read_text()
    _, out, _ = run(capfd, "cat", str(folder), "spam/trial/7/0", "--json")
    (said,) = objects(out)
    assert (said["event"], said["meta"]["state"]) == ("record", "done")


def test_a_blob_is_printed_byte_for_byte(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    digest = digest_of(b"\x00curve\xff")
    for line in (["spam/trial/7/0", "--blob"], [digest]):
        with pytest.raises(SystemExit) as ended:
            main(["store", "cat", str(folder), *line])
        assert ended.value.code in (0, None)
        assert capfdbinary.readouterr().out == b"\x00curve\xff"


def test_a_blob_as_json_is_its_size(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capfd, "cat", str(folder), "spam/trial/7/0", "--blob", "--json")
    digest = digest_of(b"\x00curve\xff")
    assert objects(out) == [{"event": "blob", "digest": digest, "nbytes": 7}]


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("spam/trial/8/0", "no_record", "nobody claimed it"),
        ("spam/trial/7/0", "no_record", "cannot be read (torn)"),
        (digest_of(b"never put"), "missing_blob", digest_of(b"never put")),
        (digest_of(b"nobody needs this"), "corrupt_blob", "5 other bytes"),
        ("sha256:7", "bad_record", "no digest"),
    ],
)
def test_what_is_not_there_is_told(
    folder: Path, capfd: pytest.CaptureFixture[str], what: str, code: str, said: str
) -> None:
    (folder / key_of("spam/trial/7/0")).write_bytes(b"")
    (folder / blob_key(digest_of(b"nobody needs this"))).write_bytes(b"other")
    exit_code, _, err = run(capfd, "cat", str(folder), what)
    assert exit_code == 1
    assert err.startswith(f"error ({code}): ")
    assert said in err


# --- gc ---------------------------------------------------------------------------------


def test_gc_lists_and_removes_only_when_told_to(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    orphan = digest_of(b"nobody needs this")
    code, out, err = run(capfd, "gc", str(folder), "--grace", "0")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == orphan
    assert "nothing needs 1 blobs, 17 bytes" in out
    assert "--delete removes them" in out
    assert (folder / blob_key(orphan)).exists()
    _, out, _ = run(capfd, "gc", str(folder), "--grace", "0", "--delete", "--json")
    expected = {"deleted": True, "digests": [orphan], "blobs": 1, "nbytes": 17, "kept": 1}
    assert objects(out) == [{"event": "gc", **expected}]
    assert not (folder / blob_key(orphan)).exists()
    _, out, _ = run(capfd, "gc", str(folder), "--grace", "0", "--delete")
    assert out.startswith("removed 0 blobs")


def test_gc_leaves_what_is_young(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capfd, "gc", str(folder), "--delete")
    assert "2 are needed or younger than 86400 s" in out
    assert (folder / blob_key(digest_of(b"nobody needs this"))).exists()
