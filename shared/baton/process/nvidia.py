"""NVIDIA GPUs of this machine, as the driver reports them, without PyTorch."""

from __future__ import annotations

from pathlib import Path

DRIVER = Path("/proc/driver/nvidia")
DEVICES = Path("/dev")


def count() -> int:
    """Number of GPUs of the driver; 0 without a driver."""
    listed = DRIVER / "gpus"
    if listed.is_dir():
        return len(list(listed.iterdir()))
    return len(list(DEVICES.glob("nvidia[0-9]*")))


def problem(torch_version: str, cuda: str | None) -> str:
    """Reason why PyTorch cannot use the present GPUs; empty if there are none.

    Args:
        torch_version: of PyTorch, like "2.13.0+cpu".
        cuda: the version of CUDA that it was built for; None if for none.
    """
    if not count():
        return ""
    if cuda is None:
        return (
            f"This machine has an NVIDIA GPU, and PyTorch {torch_version} is built without CUDA: "
            "set BATON_TORCH_INDEX=https://download.pytorch.org/whl/cu130 and install again."
        )
    return (
        f"This machine has an NVIDIA GPU that PyTorch {torch_version} cannot use: it is built for "
        f"CUDA {cuda}, and the driver is {_driver()}. Update the driver (CUDA 13 needs 580 or "
        "newer), or install with BATON_TORCH_INDEX=https://download.pytorch.org/whl/cu126."
    )


def _driver() -> str:
    """Version of the driver, like "570.133.20"."""
    try:
        words = (DRIVER / "version").read_text().split()
    except OSError:
        return "unknown"
    return next((w for w in words if w.count(".") and w.replace(".", "").isdigit()), "unknown")
