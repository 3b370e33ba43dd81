"""Formats numbers for reading, the same in every table, figure and sentence of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: The cell of a table without a measured value.
NOTHING = "–"


def percent(value: float, digits: int = 1) -> str:
    """A signed share: ``+4.2 %``, ``−0.3 %``."""
    return f"{value * 100:+.{digits}f} %".replace("-", "−")


def change(before: float, after: float) -> str:
    """The change of a loss relative to its value before, or in nats if that was 0, as on a solved task.

    Example:
        >>> change(2.0, 2.1), change(0.0, 0.25)
        ('+5.0 %', '+0.250 nats')
    """
    return percent(after / before - 1) if before else f"{signed(after)} nats"


def signed(value: float, digits: int = 3) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def count(value: float | None) -> str:
    """An integer; long ones with a letter for thousands.

    Example:
        >>> count(512), count(462_000), count(13_400_000)
        ('512', '462 k', '13.4 M')
    """
    if value is None:
        return NOTHING
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * (10 if letter == "k" else 1):
            return f"{value / size:.3g} {letter}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def size(value: float | None) -> str:
    """Bytes in binary units: ``180 MiB``."""
    if value is None:
        return NOTHING
    for bytes_, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(value) >= bytes_:
            return f"{value / bytes_:.3g} {unit}"
    return f"{value:.3g} B"


def times(value: float) -> str:
    """A multiple of the training length: ``8×``, ``1.5×``."""
    return f"{value:.0f}×" if value >= 10 or value == round(value) else f"{value:.2g}×"


def listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence: ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def numbers(values: Iterable[int]) -> str:
    """Integers in the form of `listed`: ``0, 1 and 2``."""
    return listed([str(value) for value in values])


def plural(number: int, noun: str, several: str = "") -> str:
    """A number of things: ``1 seed``, ``3 seeds``."""
    return f"{number} {noun if number == 1 else several or noun + 's'}"


def one_line(error: BaseException, *plain: type[BaseException]) -> str:
    """An error as one short line; without the name of its type for the types in ``plain``.

    Example:
        >>> one_line(KeyError("a\\nb")), one_line(OSError("no room"), OSError)
        ("KeyError: 'a\\\\nb'", 'no room')
    """
    words = " ".join(str(error).split())[:400]
    return words if words and isinstance(error, plain) else f"{type(error).__name__}: {words}"


def writable(text: str) -> str:
    """Escape text that contains a file name of arbitrary bytes, so that it can be written.

    Example:
        >>> writable("caf\\udce9")
        'caf\\\\udce9'
    """
    return text.encode(errors="backslashreplace").decode()
