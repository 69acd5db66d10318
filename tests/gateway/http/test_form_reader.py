"""Forms from strangers: bounded, and refused without a trace."""

from __future__ import annotations

from typing import Any

from tests.fakes.gateway_app import error_of, site

PATH = "/v1/files"


def test_hostile_forms(tmp_path: Any) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    cases = (
        (b"", "multipart/form-data", 400),
        (b"x", f"multipart/form-data; boundary={'b' * 10_240}", 400),
        (b"\0" * 100_000, "multipart/form-data; boundary=x", 400),
        (part % (b"a", b"1") * 1000 + b"--x--", "multipart/form-data; boundary=x", 400),
        (part % (b"a", b"1" * 100_000) + b"--x--", "multipart/form-data; boundary=x", 413),
        (b"--x\r\n" + b"h: v\r\n" * 10_000, "multipart/form-data; boundary=x", 400),
        (
            part % (b"purpose", b"\\ud800"),
            "multipart/form-data; boundary=x; charset=undefined",
            415,
        ),
        (b"a;" * 500_000, "application/x-www-form-urlencoded", 415),
        (b"{}", "application/json", 415),
        (b"x" * 200_000, "multipart/form-data; boundary=x", 413),
    )
    with site(max_file_bytes=65_536) as here:
        for body, kind, status in cases:
            answer = here.request("POST", PATH, content=body, headers={"content-type": kind})
            assert answer.status_code == status, (body[:20], answer.text)
            assert error_of(answer)["type"] == "invalid_request_error"
            if kind.endswith("=x") and b"1" * 70_000 in body:
                assert "A field of the form is too long" in error_of(answer)["message"]
        coded = {"content-type": "multipart/form-data; boundary=x", "content-encoding": "gzip"}
        assert here.request("POST", PATH, content=b"x", headers=coded).status_code == 415
