"""Fill wheelhouse/ with the packages that a machine without a network needs beside PyTorch.

The machine is expected to have torch, torchvision, timm and scikit-learn. The pins are those of
constraints.txt.
"""

import argparse
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

FOLDER = Path("wheelhouse")
CONSTRAINTS = Path(__file__).with_name("constraints.txt")
PROJECT = "gpu-collocation-study"
BUILD = "setuptools>=69"  # installs the command `collocate` there
LEFT_OUT = {"pulp"}  # 16 MB for the ILP scheduler, which profiles/default does not use
SOURCE_ONLY = {"connection-pool"}  # pure Python, published without a wheel
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17, 5)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64"]


def name_of(requirement: str) -> str:
    """The normalised distribution name at the start of a requirement line."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def closure(root: str) -> set[str]:
    """Names of the distributions that `root` needs, as installed in this environment."""
    names, left = set(), [root]
    while left:
        name = left.pop()
        if name in names or name in LEFT_OUT:
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        names.add(name)
        left += [name_of(need) for need in needs if "extra ==" not in need]
        left += ["pygments"] if name == "snakemake" else []  # of its extra `reports`
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", help="the machine's Python, such as 3.12")
    parser.add_argument("--platform", nargs="+", default=PLATFORMS, help="wheels it accepts")
    parser.add_argument("--has", nargs="*", default=[], help="packages that it has already")
    args = parser.parse_args()
    pins = {name_of(line): line for line in CONSTRAINTS.read_text("utf-8").split()}
    names = (closure(PROJECT) & pins.keys()) - set(map(name_of, args.has))
    FOLDER.mkdir(exist_ok=True)
    for wheel in FOLDER.glob("*.whl"):
        wheel.unlink()
    node = ["download", "-d", str(FOLDER), "--only-binary=:all:", "--implementation", "cp"]
    node += ["--python-version", args.python]
    node += [word for platform in args.platform for word in ("--platform", platform)]
    source = ["wheel", "-w", str(FOLDER)]
    wanted = [*(pins[name] for name in sorted(names - SOURCE_ONLY)), BUILD]
    for how, what in ((node, wanted), (source, [pins[n] for n in names & SOURCE_ONLY])):
        if what:
            command = [sys.executable, "-m", "pip", *how, "--quiet", "--no-deps", *what]
            subprocess.run(command, check=True)
    size = sum(wheel.stat().st_size for wheel in FOLDER.glob("*.whl")) / 1e6
    print(f"{len(names) + 1} wheels for Python {args.python}, {size:.0f} MB in {FOLDER}/")
    print("Copy this folder to the machine and type `make install` there.")


if __name__ == "__main__":
    main()
