"""A host name that cannot be resolved is named before the first wait."""

from __future__ import annotations

import pytest

from torch_estimator.cluster.addresses import warn_if_unresolved


@pytest.mark.parametrize("host", ["no-such-host.invalid", "chief.invalid", "a.b.c.invalid."])
def test_a_host_that_cannot_be_resolved_is_named(host: str, caplog: pytest.LogCaptureFixture) -> None:
    warn_if_unresolved("worker 0", "chief 0", f"{host}:2222")
    assert caplog.messages == [
        f"worker 0 looks for chief 0 at {host}:2222, but the host name {host!r} cannot be resolved now."
    ]


@pytest.mark.parametrize("address", ["localhost:2222", "127.0.0.1:1", "[::1]:2222"])
def test_a_host_that_can_be_resolved_is_not_named(address: str, caplog: pytest.LogCaptureFixture) -> None:
    warn_if_unresolved("worker 0", "ps 0", address)
    assert not caplog.messages
