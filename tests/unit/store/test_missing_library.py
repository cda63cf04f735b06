"""A store in a bucket, where the library that reaches buckets is not installed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CHECK = """
import sys
sys.modules["obstore"] = None  # as good as not installed
from entrepot.errors import MissingExtra
from entrepot.store.opening import check_url
check_url({url!r})
"""


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://trials", "MissingExtra: a store in a bucket needs obstore"),
        ("gs://trials", "MissingExtra: a store in a bucket needs obstore"),
        ("s3://", "ConfigurationError: '' is no name of a bucket"),
        ("file:///var/trials", ""),
        ("trials", ""),
    ],
)
def test_a_url_is_refused_before_anything_waits_for_its_store(url: str, said: str) -> None:
    """What a service that waits for its store to come back would wait for in vain."""
    found = subprocess.run(
        [sys.executable, "-c", CHECK.format(url=url)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert found.returncode == (1 if said else 0)
    last = found.stderr.splitlines()[-1] if said else found.stderr
    assert said in last
    if "obstore" in said:
        assert "pip install 'entrepot[bucket]'" in last
