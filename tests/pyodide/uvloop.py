"""Stands for uvloop, which has no wheel for WebAssembly; a test names it, those that run do not use it."""


def new_event_loop() -> None:
    raise RuntimeError("this is not uvloop")
