"""The picture of a race: how long winners and losers waited for their answer."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deploy.folders import DeployError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES: Final = (".png", ".svg")
_BINS: Final = 60
_INCHES: Final = (9.0, 5.5)
_DOTS_PER_INCH: Final = 120
_GREEN: Final = "#1b7f4d"
_GREY: Final = "#5b6b7b"


class PlotError(DeployError):
    """A plot that cannot be made; the message is one line."""


def check_plot(path: Path) -> None:
    """Return if a plot can be written there: asked before a race, so that a race is not run in vain.

    Raises:
        PlotError: another suffix, no such folder, no right to write into it, or matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise PlotError(f"{path}: a plot is written as .png or .svg")
    if path.is_dir() or not path.parent.is_dir():
        raise PlotError(f"{path}: {'is a folder' if path.is_dir() else 'its folder does not exist'}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PlotError(f"{path}: its folder cannot be written to")
    _figure_type()


def write_plot(path: Path, *, winners_ms: Sequence[float], losers_ms: Sequence[float], title: str) -> None:
    """Write the histogram of both latencies, in milliseconds, as the suffix says; the file is whole or not there.

    Raises:
        PlotError: as :func:`check_plot`, or the file cannot be written.
    """
    check_plot(path)
    figure = _draw(winners_ms=winners_ms, losers_ms=losers_ms, title=title)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            with fresh.open("xb") as stream:
                figure.savefig(stream, format=path.suffix.lower().removeprefix("."), dpi=_DOTS_PER_INCH)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise PlotError(f"{path}: {error.strerror or error}") from None


def _figure_type() -> type[Figure]:
    """Return matplotlib's Figure: one of one's own has no window and no global state, and is saved by Agg or as SVG."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an optional extra, asked for by --plot alone
    except ImportError:
        raise PlotError("--plot needs matplotlib: pip install 'dibs[plot]'") from None
    return Figure


def _draw(*, winners_ms: Sequence[float], losers_ms: Sequence[float], title: str) -> Figure:
    """Draw one panel each above the same axis: a few winners would not be seen among thousands of losers."""
    figure = _figure_type()(figsize=_INCHES, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    longest = max((*winners_ms, *losers_ms), default=1.0) or 1.0
    edges = [longest * number / _BINS for number in range(_BINS + 1)]
    _panel(upper, winners_ms, edges, name="winners (201)", colour=_GREEN)
    _panel(lower, losers_ms, edges, name="losers (409)", colour=_GREY)
    lower.set_xlabel("latency (ms), from the first byte sent to the last byte read")
    lower.set_xlim(0, longest)
    figure.suptitle(title)
    return figure


def _panel(axes: Axes, latencies_ms: Sequence[float], edges: Sequence[float], *, name: str, colour: str) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - as above

    axes.hist(latencies_ms, bins=list(edges), color=colour, label=f"{len(latencies_ms)} {name}")
    axes.set_ylabel("requests")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="upper right", frameon=False)
