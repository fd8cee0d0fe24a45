"""One way to run each check: `nox -s NAME`. CONTRIBUTING.md says what each is for."""

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "uv"
# An interpreter that is not there is skipped, never downloaded; .ci/run makes it an error.
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
nox.options.error_on_external_run = True
nox.options.sessions = ["tests", "lint", "types", "docs"]

PYTHONS = nox.project.python_versions(nox.project.load_toml("pyproject.toml"))
SOURCES = [str(path) for path in Path("src").rglob("*.py")]
EXAMPLE = "docs/examples/agent_turn.py"
RUNNER_PAGES = [
    "docs/tutorial-runners.md",
    *(f"docs/howto/{name}.md" for name in ("google-adk", "langgraph", "openai-agents", "pydantic-ai")),
]
CLIENTS = "tests/stress/clients.py"


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    session.install(".", "--group", "test")
    if session.python != PYTHONS[-1]:
        session.run("pytest", *session.posargs)
        return
    # Measured once: it doubles the time.
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", *session.posargs)
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report")


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    session.install("--resolution", "lowest-direct", ".", "--group", "test", "--group", "web")
    # In Python's development mode, with asyncio's debug mode.
    session.run("python", "-X", "dev", "-W", "error", "-m", "pytest", *session.posargs)
    session.run("pytest", "tests/serving")


@nox.session
def lint(session: nox.Session) -> None:
    session.install("--group", "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    # Examples and tests leave streams open on purpose, so only the library is held to these.
    rules = "ASYNC101,ASYNC102,ASYNC119,ASYNC120,ASYNC900"
    session.run("flake8-async", f"--enable={rules}", "--anyio", *SOURCES)


@nox.session
def types(session: nox.Session) -> None:
    session.install(".", "--group", "types")
    session.run("mypy")
    session.run("pyright", "--verifytypes", "streamguard", "--ignoreexternal")
    session.run("pyright")


@nox.session
def docs(session: nox.Session) -> None:
    session.install(".", "--group", "docs")
    session.run("sphinx-build", "-W", "-n", "-E", "-b", "html", "docs", "docs/_build/html")


@nox.session(python=PYTHONS)
def conformance(session: nox.Session) -> None:
    session.install(".", "--group", "test", "--group", "web", "--group", "runners", "--group", "peers")
    session.run("pytest", "tests/conformance", *RUNNER_PAGES, *session.posargs)
    session.run("python", EXAMPLE)


@nox.session(python=PYTHONS[1])  # the first that tells which lines a test reaches, at no cost
def mutation(session: nox.Session) -> None:
    session.install("--editable", ".", "--group", "test", "--group", "mutation")
    session.run("python", "tests/mutants.py", *session.posargs)


@nox.session(python=PYTHONS[-1])
def pyodide(session: nox.Session) -> None:
    session.install(".", "--group", "test")
    folder = session.create_tmp()
    # The npm package of that name is a CPython in WebAssembly; its first number is the Python's.
    session.run("npm", "install", "--no-package-lock", "--prefix", folder, "pyodide@^314", external=True)
    packages = session.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", silent=True)
    session.run("node", "tests/pyodide/run.mjs", folder, str(packages).strip(), *session.posargs, external=True)


@nox.session(python=PYTHONS)
def serving(session: nox.Session) -> None:
    session.install(".", "--group", "test", "--group", "web")
    session.run("pytest", "tests/serving", "docs/howto/serve-with-fastapi.md", *session.posargs)
    session.run("python", CLIENTS, "--seconds", "2", "--clients", "50")


@nox.session(python=PYTHONS[1])
def stress(session: nox.Session) -> None:
    session.install(".", "--group", "test")
    backend = session.posargs[:1]
    with session.chdir("tests"):
        session.run("python", "-m", "stress.random_plays", *backend)
        session.run("python", "-m", "stress.random_cancels", *backend)
        session.run("python", "-m", "stress.every_cancellation", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    session.install(".", "--group", "test", "--group", "web")
    session.run("python", CLIENTS, *session.posargs)
    session.run("python", CLIENTS, "--uvloop", *session.posargs)
    with session.chdir("tests"):
        session.run("python", "-m", "stress.soak", *session.posargs)
        session.run("python", "-m", "stress.sequential", "all", "all", "20000")


@nox.session
def browser(session: nox.Session) -> None:
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            session.error(f"no {program} on the PATH; on Debian: apt-get install chromium chromium-driver")
    session.install(".", "--group", "test", "--group", "web", "--group", "browser")
    session.run("pytest", "tests/browser", *session.posargs)


@nox.session
def agent_turn(session: nox.Session) -> None:
    session.install(".", "--group", "runners")
    session.run("python", EXAMPLE, *session.posargs)


@nox.session
def memory(session: nox.Session) -> None:
    session.install(".", "--group", "bench", "--group", "runners")
    session.run("python", "tests/benchmarks/memory.py", *session.posargs)


@nox.session(python=PYTHONS)
def bench(session: nox.Session) -> None:
    session.install(".", "--group", "bench", "--group", "peers", "--group", "runners")
    session.run("python", "tests/benchmarks/bench.py", *session.posargs)
    session.run("python", "tests/benchmarks/tracing.py")
