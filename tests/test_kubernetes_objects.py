"""Names of Kubernetes objects are valid, and different names stay different."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from torch_estimator.kubernetes_objects import label

# RFC 1035, which Services follow: a letter first.
VALID = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def test_a_good_name_stays_as_it_is() -> None:
    for name in ("prices", "prices-1", "a", "x" * 63):
        assert label(name) == name
        assert label(label(name.upper())) == label(name.upper())


def test_what_gcloud_allows_is_mapped_to_different_labels() -> None:
    long = ["x" * 64, "x" * 65]
    names = ["prices_1", "Prices_1", "prices-1", "prices.1", "-prices_1", "prices_1-", "1", "n-1", "", *long]
    assert len({label(name) for name in names}) == len(names)


@given(st.text(st.characters(), max_size=80), st.integers(20, 63))
def test_every_text_becomes_a_valid_label(name: str, most: int) -> None:
    made = label(name, most)
    assert len(made) <= most
    assert VALID.fullmatch(made)
    assert label(made, most) == made
