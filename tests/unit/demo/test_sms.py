"""The loader finds the real messages, takes no others, and says what to do without them."""

from __future__ import annotations

import hashlib
import io
import shutil
import urllib.error
import zipfile
from email.message import Message as Headers
from pathlib import Path
from typing import Any

import pytest

from entrepot.demo import sms
from entrepot.errors import DataUnavailable


class Answer(io.BytesIO):
    """What ``urlopen`` gives for a body."""

    def __init__(self, body: bytes, length: int | None = None) -> None:
        super().__init__(body)
        self.headers = Headers()
        self.headers["Content-Length"] = str(len(body) if length is None else length)


@pytest.fixture
def real() -> bytes:
    return sms.locate().read_bytes()


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, real: bytes) -> Path:
    """A machine without a copy near by: the cache folder is empty, and it is returned."""
    monkeypatch.delenv(sms.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sms, "_near", list)
    return tmp_path / "cache" / "entrepot"


def archive(data: bytes, member: str = sms.MEMBER) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(member, data)
        made.writestr("readme", "about")
    return packed.getvalue()


def serve(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[str]:
    """``urlopen`` answers so (an exception is raised); the URLs it was asked for are returned."""
    asked: list[str] = []

    def urlopen(url: str, timeout: float) -> Answer:
        asked.append(url)
        if isinstance(answer, Exception):
            raise answer
        return Answer(answer) if isinstance(answer, bytes) else answer

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    return asked


def test_every_message_is_read() -> None:
    messages = sms.load()
    assert len(messages) == sms.MESSAGES
    assert sum(message.spam for message in messages) == 747
    assert messages[0].text.startswith("Go until jurong point")


def test_only_a_line_feed_ends_a_message() -> None:
    assert sms.parse("ham\ta\x85b\r\u2028c\tand a tab\nspam\tlast\n".encode()) == [
        (False, "a\x85b\r\u2028c\tand a tab"),
        (True, "last"),
    ]


@pytest.mark.parametrize("line", ["eggs\ttext", "ham", "", "\ttext"])
def test_a_line_that_is_no_message_is_named(line: str) -> None:
    with pytest.raises(DataUnavailable, match="line 2 is not"):
        sms.parse(f"ham\tgood\n{line}\n".encode())


def test_the_variable_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, real: bytes
) -> None:
    copy = tmp_path / "a copy"
    copy.write_bytes(real)
    monkeypatch.setenv(sms.VARIABLE, str(copy))
    assert sms.locate() == copy


def test_a_copy_beside_the_working_folder_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, real: bytes
) -> None:
    beside = tmp_path / "shared" / "data" / "sms_spam" / sms.MEMBER
    beside.parent.mkdir(parents=True)
    beside.write_bytes(real)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv(sms.VARIABLE, raising=False)
    assert sms.locate() == beside


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b + b"\n", lambda b: b""])
def test_a_file_that_is_not_the_collection_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, real: bytes, damage: Any
) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(damage(real))
    monkeypatch.setenv(sms.VARIABLE, str(copy))
    with pytest.raises(DataUnavailable, match=f"sha256.*not {sms.SHA256}.*{sms.VARIABLE}"):
        sms.locate()


def test_a_missing_file_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(sms.VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(DataUnavailable, match=rf"nowhere: No such file.*set {sms.VARIABLE}"):
        sms.load()


def test_a_download_is_kept_and_used_again(
    monkeypatch: pytest.MonkeyPatch, far: Path, real: bytes
) -> None:
    asked = serve(monkeypatch, archive(real))
    seen: list[tuple[int, int]] = []
    first = sms.load(progress=lambda came, expected: seen.append((came, expected)))
    assert len(first) == sms.MESSAGES
    assert seen[-1][0] == seen[-1][1] > 0
    assert sms.load() == first
    assert asked == [sms.URL]
    assert [file.name for file in far.iterdir()] == [sms.MEMBER]


def test_a_damaged_cache_is_fetched_anew(
    monkeypatch: pytest.MonkeyPatch, far: Path, real: bytes
) -> None:
    far.mkdir(parents=True)
    (far / sms.MEMBER).write_bytes(real[:1000])
    serve(monkeypatch, archive(real))
    assert hashlib.sha256(sms.locate().read_bytes()).hexdigest() == sms.SHA256


@pytest.mark.parametrize(
    "answer",
    [
        urllib.error.URLError("Name or service not known"),
        TimeoutError("timed out"),
        b"<html>not an archive</html>",
        archive(b"", member="something else"),
        archive(b"ham\tnot it\n"),
        Answer(b"PK", length=200_000),
        Answer(b"x" * (sms.MAX_ARCHIVE_NBYTES + 1)),
        b"",
    ],
    ids=["no network", "silence", "a page", "no member", "wrong", "cut", "too much", "nothing"],
)
def test_a_download_that_fails_says_what_to_set_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, far: Path, answer: Any
) -> None:
    serve(monkeypatch, answer)
    with pytest.raises(DataUnavailable, match=f"set {sms.VARIABLE} to") as told:
        sms.locate()
    assert sms.URL in str(told.value)
    assert not far.exists() or list(far.iterdir()) == []


def test_a_download_that_never_ends_is_given_up(
    monkeypatch: pytest.MonkeyPatch, far: Path, real: bytes
) -> None:
    serve(monkeypatch, archive(real))
    monkeypatch.setattr(sms, "DOWNLOAD_S", -1.0)
    with pytest.raises(DataUnavailable, match=r"only \d+ bytes came in"):
        sms.locate()


def test_a_cache_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, far: Path, real: bytes
) -> None:
    far.parent.write_text("a file where the folder should be")
    serve(monkeypatch, archive(real))
    with pytest.raises(DataUnavailable, match=r"cannot keep.*XDG_CACHE_HOME"):
        sms.locate()


def test_a_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert sms.cache_folder() == Path.home() / ".cache" / "entrepot"


def test_a_fault_while_writing_leaves_no_part(
    monkeypatch: pytest.MonkeyPatch, far: Path, real: bytes
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    serve(monkeypatch, archive(real))
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataUnavailable, match="No space left"):
        sms.locate()
    assert list(far.iterdir()) == []
    shutil.rmtree(far)
