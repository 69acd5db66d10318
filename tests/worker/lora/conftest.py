"""One tiny model with adapters, for all tests of them."""

from __future__ import annotations

import pytest

from tests.support.worker.adapted_model import Adapted, adapted_model


@pytest.fixture(scope="session")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return adapted_model(tmp_path_factory.mktemp("adapted"))
