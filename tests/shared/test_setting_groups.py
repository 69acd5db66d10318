from __future__ import annotations

from pydantic import BaseModel, Field

from baton.setting_groups import setting, trait


class Knobs(BaseModel):
    page: int = setting(16, "memory", advanced=True, ge=1)
    plain: int = Field(3)


def test_traits_are_read_back() -> None:
    page, plain = Knobs.model_fields["page"], Knobs.model_fields["plain"]
    assert (page.default, trait(page, "group"), trait(page, "advanced")) == (16, "memory", True)
    assert trait(page, "shared") is False
    assert trait(plain, "group") is None
