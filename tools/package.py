"""Build the wheel and the sdist, and try each in a clean environment that does not know the repository.

python tools/package.py dist       # in the environment of `make test`; takes some minutes, most of them for PyTorch

Each archive is installed by pip with all that it depends on, and must print its version, train, generate and report
there. The last line is JSON: the size of each archive, and of everything that was installed with it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMALL = "model.d_model=32 model.num_layers=2 model.num_heads=2 training.max_length=32 training.batch_size=4"
STEPS = "training.max_steps=3 data.tokenizer=byte"
TREE = """
import json
from importlib import metadata
sizes = {
    each.metadata["Name"]: sum(path.stat().st_size for f in each.files or () if (path := each.locate_file(f)).is_file())
    for each in metadata.distributions()
}
print(json.dumps(sizes))
"""


def run(*command: str | Path, folder: Path, **variables: str) -> str:
    """Run a command without the variables that would let it find the repository; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env={**environment, **variables}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(
            f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return done.stdout


def build(out: Path) -> list[Path]:
    """Build an sdist from the files that git knows, and from it a wheel, and one without the native library."""
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / "source"
        names = run("git", "ls-files", folder=ROOT).splitlines()
        for name in names:
            (clean / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clean / name, follow_symlinks=False)
        code = f"from setuptools.build_meta import build_sdist; build_sdist({str(out)!r})"
        run(sys.executable, "-c", code, folder=clean)
    sdist = next(out.glob("*.tar.gz"))
    make_wheel = (
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-cache-dir",
        "--wheel-dir",
        out,
        sdist,
    )
    run(*make_wheel, folder=out)
    wheel = next(out.glob("*.whl"))
    run(*make_wheel, folder=out, HEADRACE_NATIVE="0")  # the one that Windows gets
    (anywhere,) = out.glob("*-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(anywhere).namelist() if name.endswith(".so")]
    return [wheel, sdist]


def try_archive(archive: Path) -> dict[str, object]:
    """Install an archive into a clean environment, use it, and return the sizes of what was installed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        python = scripts / "python"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", archive, folder=folder)
        cache = {"HEADRACE_CACHE": str(folder / "cache")}
        (folder / "a.txt").write_text("The mill wheel turns, and the water runs on.\n" * 2000)
        version = run(scripts / "headrace", "--version", folder=folder)
        assert version == run(python, "-m", "headrace", "--version", folder=folder)
        train = ["train", "a.txt", *SMALL.split(), *STEPS.split(), "--out", "run", "--json"]
        trained = json.loads(run(python, "-m", "headrace", *train, folder=folder, **cache).splitlines()[-1])
        assert trained["steps"] == 3
        run(python, "-m", "headrace", "generate", "run", "--prompt", "The", folder=folder, **cache)
        run(python, "-m", "headrace", "report", "run", folder=folder, **cache)
        place = run(python, "-c", "import headrace; print(headrace.__file__)", folder=folder)
        assert Path(place.strip()).is_relative_to(folder.resolve()), place
        assert Path(place.strip()).with_name("py.typed").exists(), "type checkers would not see the types"
        installed = json.loads(run(python, "-c", TREE, folder=folder))
    print(f"{archive.name}: {version.strip()} installs, trains, generates and reports", flush=True)
    return {"archive": archive.name, "bytes": archive.stat().st_size, "installed_bytes": installed}


def main() -> None:
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("headrace-*"):
        old.unlink()
    print(json.dumps([try_archive(archive) for archive in build(out)]))


if __name__ == "__main__":
    main()
