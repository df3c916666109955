"""Every pair on every tier, and its reference as a candidate like them: the main trial, as pytest ids like
`test_pair[store_cache-avx512]`."""

from collections.abc import Callable

from kernelpair.search.tally import Tally


def test_pair(kernelpair_trial: Callable[[], Tally]) -> None:
    kernelpair_trial()
