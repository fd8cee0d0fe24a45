"""The example program: it shows what it says, on its own, without a network."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "agent_turn.py"

OFFLINE = """
import runpy
import sys


def refuse(event, args):
    if event in ("socket.connect", "socket.getaddrinfo"):
        print("NETWORK", event, args, flush=True)


sys.addaudithook(refuse)
sys.argv[0] = sys.argv.pop()
sys.path[0] = sys.argv[0].rpartition("/")[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_timelines() -> None:
    """Both bare loops leave a model call open and one charges the card; the guarded ones do not."""
    result = subprocess.run([sys.executable, "-c", OFFLINE, EXAMPLE], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert "NETWORK" not in result.stdout
    assert all(len(line) <= 100 for line in result.stdout.splitlines())
    parts = dict(part.split("\n", 1) for part in result.stdout.strip().split("\n\n"))
    for sdk in ("google-adk", "openai-agents"):
        assert "still open: 1 model call" in parts[f"{sdk}, a bare loop"]
        *_, last = parts[f"{sdk}, guarded"].splitlines()
        assert "input enabled, still open: nothing" in last
    assert "THE CARD IS CHARGED" in parts["openai-agents, a bare loop"]
    assert "THE CARD IS CHARGED" not in parts["openai-agents, guarded"]
