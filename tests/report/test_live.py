"""Progress on a terminal of 80 columns, in a log of CI, and in a pipe."""

import io
from threading import Thread

from rich.console import Console

from kernelpair.report.live import Progress


class SetClock:
    """Seconds that pass when they are told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def run(console: Console, ci: bool) -> SetClock:
    clock = SetClock()
    with Progress(console, 3, 60.0, clock, ci) as progress:
        progress.update(("decode_attention_with_a_long_name_that_goes_on", "avx512_bf16"), 1200, 10.0, 5000)
        clock.now = 31.0
        progress.update(("store_cache", "scalar"), 40, 1.0)
        progress.ended(("store_cache", "scalar"), 60, ["store_cache[scalar] value: out: " + "far off " * 20])
    return clock


def drawn(width: int) -> list[str]:
    clock = SetClock()
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    progress = Progress(console, 3, 60.0, clock, ci=False)
    progress.update(("decode_attention_with_a_long_name_that_goes_on", "avx512_bf16"), 1200, 10.0, 5000)
    clock.now = 20.0
    progress.ended(("store_cache", "scalar"), 60, ["store_cache[scalar] value: out: " + "far off " * 20])
    with console.capture() as captured:
        console.print(progress.drawn())
    return captured.get().splitlines()


def test_nothing_is_drawn_while_a_result_is_printed() -> None:
    console, seen = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None), []
    with Progress(console, 3, ci=False) as progress:
        assert progress.shown is not None
        thread = Thread(target=progress.shown.refresh)

        def prints(line: str) -> None:
            thread.start()
            thread.join(0.2)
            seen.append((line, thread.is_alive()))

        progress.alone(prints)("a result")
        thread.join(10)
        assert seen == [("a result", True)] and not thread.is_alive()


def test_eighty_columns_suffice() -> None:
    lines = drawn(80)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "1,200 of 5,000" in text and "120/s" in text and "avx512_bf16" in text
    assert "1 of 3 trials · 1,260 cases · 63/s · 1 failed · 0:40 left" in text
    assert "✗ store_cache[scalar] value" in text


def test_a_log_gets_a_line_now_and_then() -> None:
    console = Console(file=io.StringIO(), width=80)
    run(console, ci=True)
    assert console.file.getvalue().splitlines() == ["… 0 of 3 trials · 1,240 cases · 40/s · 0:29 left"]  # type: ignore[attr-defined]


def test_a_pipe_gets_nothing() -> None:
    console = Console(file=io.StringIO(), width=80)
    run(console, ci=False)
    assert not console.file.getvalue()  # type: ignore[attr-defined]


def test_no_color_is_honoured(monkeypatch: object) -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, no_color=True)
    run(console, ci=False)
    assert "store_cache" in file.getvalue() and "\x1b[31m" not in file.getvalue()
