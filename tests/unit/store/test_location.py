"""Where a bucket is: URLs apart and together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrepot.errors import ConfigurationError
from entrepot.store.location import Location, located, location_at


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://studies", Location("s3", "studies")),
        ("s3://studies/", Location("s3", "studies")),
        ("s3://studies/a/b/", Location("s3", "studies", "a/b")),
        ("s3://studies/a%20b/%C3%BC", Location("s3", "studies", "a b/ü")),
        (
            "s3://studies/a?endpoint=http://host:9000",
            Location("s3", "studies", "a", "http://host:9000"),
        ),
        (
            "s3://studies?region=eu-west-1&endpoint=https://[::1]:9000/path/",
            Location("s3", "studies", "", "https://[::1]:9000/path", "eu-west-1"),
        ),
        ("s3://my.bucket-1", Location("s3", "my.bucket-1")),
        ("gs://some_bucket/x", Location("gs", "some_bucket", "x")),
        ("az://studies/x?account=mine", Location("az", "studies", "x", account="mine")),
    ],
)
def test_a_url_says_where(url: str, location: Location) -> None:
    assert location_at(url, {}) == location


PARTS = st.text(min_size=1, max_size=12).filter(
    lambda part: part.isprintable() and "/" not in part and part not in (".", "..")
)


@given(
    prefix=st.lists(PARTS, max_size=4).map("/".join),
    endpoint=st.none() | st.sampled_from(["http://host:9000", "https://s3.host/path"]),
    region=st.none() | PARTS,
)
def test_its_url_says_the_same_again(prefix: str, endpoint: str | None, region: str | None) -> None:
    location = Location("s3", "studies", prefix, endpoint, region)
    assert location_at(location.url, {}) == location


def test_variables_name_an_endpoint_if_nobody_else_does() -> None:
    environment = {"AWS_ENDPOINT_URL_S3": "http://one:1", "AWS_ENDPOINT_URL": "http://two:2"}
    assert location_at("s3://studies", environment).endpoint == "http://one:1"
    assert location_at("s3://studies", {"AWS_ENDPOINT_URL": "http://two:2"}).endpoint == (
        "http://two:2"
    )
    url = "s3://studies?endpoint=http://three:3"
    assert location_at(url, environment).endpoint == "http://three:3"
    assert location_at("gs://studies", environment).endpoint is None


def test_an_endpoint_of_a_variable_is_looked_at_as_well() -> None:
    with pytest.raises(ConfigurationError, match="no endpoint"):
        located("s3", "studies", "", {"AWS_ENDPOINT_URL": "host:9000"})


def test_what_people_are_told_of() -> None:
    assert Location("s3", "studies").service == "https://s3.amazonaws.com"
    assert Location("s3", "studies", endpoint="http://host:1").service == "http://host:1"
