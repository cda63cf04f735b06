"""pytest, imported only while tests run: the suites can be imported without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import pytest


def raises(error: type[Exception], match: str | None = None) -> pytest.RaisesExc[Exception]:
    import pytest

    return pytest.raises(error, match=match)


def skip(why: str) -> NoReturn:
    import pytest

    pytest.skip(why)
