"""What a bucket's errors mean, and that nothing of what a server repeats is passed on."""

from __future__ import annotations

import pytest

from entrepot.errors import (
    ConfigurationError,
    NoBucket,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from entrepot.store.faults import Fault, Kind, fault_of, in_words
from entrepot.store.location import Location

WHERE = Location("s3", "studies", "a", "http://host:9000")


def raised(name: str, text: str) -> Exception:
    """An exception of obstore's: of that name, since a forked child has classes of its own."""
    kind: type[Exception] = type(name, (Exception,), {})
    return kind(text)


def answered(status: int, code: str = "", name: str = "GenericError") -> Exception:
    body = (
        f"<?xml version='1.0'?><Error><Code>{code}</Code><AWSAccessKeyId>AKIA-SECRET"
        if code
        else ""
    )
    return raised(
        name,
        f"Generic S3 error: Error performing PUT http://host:9000/studies/x in 1ms - Server "
        f"returned non-2xx status code: {status} Some Reason: {body}\n\nDebug source: ...",
    )


def unanswered(kind: str, said: str) -> Exception:
    return raised(
        "GenericError",
        "Generic S3 error: Error performing PUT http://host:9000/studies/x in 1ms - HTTP error: "
        f"error sending request\n\nDebug source:\nHttpError {{ kind: {kind}, source: Os {{ code: 1,"
        f' message: "{said}" }} }}',
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answered(404, "NoSuchKey", "FileNotFoundError"), Kind.NOT_THERE),
        (answered(404, "", "FileNotFoundError"), Kind.NOT_THERE),
        (answered(404, "NoSuchBucket", "FileNotFoundError"), Kind.FINAL),
        (answered(404, "NoSuchBucket"), Kind.FINAL),
        (answered(412, "PreconditionFailed", "AlreadyExistsError"), Kind.THERE),
        (answered(409, "ConditionalRequestConflict", "AlreadyExistsError"), Kind.THERE),
        (answered(412, "PreconditionFailed", "PreconditionError"), Kind.STALE),
        (answered(403, "AccessDenied", "PermissionDeniedError"), Kind.FINAL),
        (answered(401, "", "UnauthenticatedError"), Kind.FINAL),
        (answered(400, "InvalidRequest"), Kind.FINAL),
        (answered(501, "NotImplemented"), Kind.FINAL),
        (raised("NotSupportedError", "no"), Kind.FINAL),
        (answered(408, "RequestTimeout"), Kind.UNCLEAR),
        (answered(429, "TooManyRequests"), Kind.UNCLEAR),
        (answered(500, "InternalError"), Kind.UNCLEAR),
        (answered(503, "SlowDown"), Kind.UNCLEAR),
        (unanswered("Connect", "Connection refused"), Kind.UNCLEAR),
        (unanswered("Timeout", ""), Kind.UNCLEAR),
        (raised("SomethingNew", "that nobody knows"), Kind.UNCLEAR),
        (ConfigurationError("ours"), Kind.FINAL),
    ],
)
def test_what_can_be_done_about_it(error: Exception, kind: Kind) -> None:
    assert fault_of(error).kind is kind


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (answered(404, "NoSuchBucket"), NoBucket, "entrepot store init 's3://studies/a?"),
        (answered(403, "SignatureDoesNotMatch"), StoreDenied, "secret is wrong"),
        (answered(403, "AccessDenied"), StoreDenied, "read, write, list and delete in 'studies'"),
        (answered(403, "RequestTimeTooSkewed"), StoreDenied, "clock"),
        (answered(400, "ExpiredToken", "PermissionDeniedError"), StoreDenied, "expired"),
        (answered(507, "XMinioStorageFull"), StoreFull, "no room"),
        (answered(301, "PermanentRedirect"), StoreUnreachable, "region"),
        (answered(503, "SlowDown"), StoreUnreachable, "503 SlowDown, 3 times"),
        (unanswered("Connect", "Connection refused"), StoreUnreachable, "Connection refused"),
        (unanswered("Timeout", ""), StoreUnreachable, "no answer in time"),
        (raised("GenericError", "reading http://169.254.169.254/"), StoreDenied, "no credentials"),
        (
            raised("GenericError", "token request: GET http://169.254.169.254/ - status code: 403"),
            StoreDenied,
            "no credentials",
        ),
        (answered(405, "MethodNotAllowed"), StoreError, "405 MethodNotAllowed"),
    ],
)
def test_it_is_said_in_words(error: Exception, kind: type[StoreError], said: str) -> None:
    told = in_words(error, "claim 'x'", WHERE, 3)
    assert type(told) is kind
    assert said in str(told)
    assert "http://host:9000" in str(told)


AGAIN = (
    "Generic S3 error: Error performing GET http://host:9000/studies/x in 21.5s, after 4 retries, "
    "max_retries: 99, retry_timeout: 600s  - "
)


def test_it_says_how_often_it_was_really_tried_and_for_how_long() -> None:
    """Not how often it might have been: obstore ends for other reasons too, and does not ask for
    everything again. Where it did, the setting is named that says how often."""
    hung = raised("GenericError", AGAIN + "HTTP error\n\nHttpError { kind: Timeout }")
    busy = raised("GenericError", AGAIN + "Server returned error status code: 503")
    for error, said in ((hung, "no answer in time"), (busy, "503")):
        told = str(in_words(error, "read x", WHERE, took_s=21.53))
        assert f"{said}, 5 times in 21.5 s" in told
        assert told.endswith("; ENTREPOT_STORE__ATTEMPTS says how often it is tried")
    once = str(in_words(unanswered("Timeout", ""), "read x", WHERE, took_s=4.02))
    assert "(no answer in time, after 4.0 s)" in once
    assert "ATTEMPTS" not in once
    assert "503 SlowDown;" in str(in_words(answered(503, "SlowDown"), "read x", WHERE, took_s=0.01))


def test_nothing_that_a_server_repeats_is_passed_on() -> None:
    for status in (301, 400, 403, 404, 409, 412, 500, 503, 507):
        error = answered(status, "SomeCode")
        assert "AKIA-SECRET" in str(error)
        assert "AKIA-SECRET" not in str(in_words(error, "claim 'x'", WHERE))


def test_a_fault_in_a_few_words() -> None:
    assert Fault(Kind.UNCLEAR, 503, "SlowDown").said == "503 SlowDown"
    assert Fault(Kind.UNCLEAR, 503).said == "503"
    assert Fault(Kind.UNCLEAR, timed_out=True).said == "no answer in time"
    assert Fault(Kind.UNCLEAR).said == "the connection broke"
