"""The benchmark of sends without a copy says so if other bytes arrive than were sent."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
SIZE = (1 << 21) + 12345  # several system calls, the last of which is no whole page


@pytest.fixture
def sends(monkeypatch):
    if not sys.platform.startswith("linux"):
        pytest.skip("needs Linux")
    monkeypatch.syspath_prepend(str(BENCH))
    import sends

    yield sends
    del sys.modules["sends"]


@pytest.fixture
def receiver():
    command = [sys.executable, BENCH / "sends.py", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield "127.0.0.1", int(process.stdout.readline())
        process.kill()


def test_each_way_sends_all_bytes(sends, receiver):
    rows = sends.measure(receiver, SIZE, 2)
    assert list(rows) == list(sends.WAYS)
    assert len(rows["send"][0]) == 2
    for name, row in rows.items():
        assert isinstance(row, str) or all(seconds > 0 for seconds, _ in row[0]), name
    text = sends.page(rows, SIZE)
    assert "1.00 (1.00 – 1.00)" in text and all(name in text for name in sends.WAYS)


@pytest.mark.parametrize("wrong", ["reversed", "stale"])
def test_wrong_bytes_are_an_error(sends, receiver, monkeypatch, wrong):
    class Wrong(sends.Plain):
        first = None

        def step(self, at, n):
            self.first = self.first or bytes(self.memory.view)  # what the first turn sends
            part = bytes(self.memory.view[at : at + n])[::-1] if wrong == "reversed" else self.first[at : at + n]
            return self.connection.send(part)

    monkeypatch.setitem(sends.WAYS, "sendfile", Wrong)
    with pytest.raises(sends.Wrong, match="other bytes arrived"):
        sends.measure(receiver, SIZE, 2)
