from __future__ import annotations

from baton_gateway.api.documentation.description import Description, describe, description_of
from baton_gateway.schemas.tokenize import TokenizeRequest, TokenizeResponse


def test_an_endpoint_says_what_it_reads_and_answers() -> None:
    @describe(TokenizeRequest, TokenizeResponse)
    def endpoint() -> None: ...

    assert description_of(endpoint) == Description(TokenizeRequest, TokenizeResponse)
    assert description_of(print) == Description()
