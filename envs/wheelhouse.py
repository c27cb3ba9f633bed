"""Fill wheelhouse/ with what a GPU node that has its own torch still needs to run the workflow.

The node is expected to have torch, torchvision, timm, pillow and scikit-learn, and unless --all is
given also numpy, scipy, pandas and pyarrow. Without --all it measures (`make cells`) and draws
nothing. The pins are those of constraints.txt.
"""

import argparse
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

FOLDER = Path("wheelhouse")
CONSTRAINTS = Path(__file__).with_name("constraints.txt")
WANTED = ("snakemake", "pygments", "pydantic", "pyyaml", "psutil", "nvidia-ml-py")
WANTED += ("markdown-it-py", "jinja2", "detect-secrets")
SCIENTIFIC = ("numpy", "scipy", "pyarrow", "pandas")
DRAWING = ("matplotlib", "altair", "vl-convert-python", "adjusttext")
LEFT_OUT = {"pulp"}  # 16 MB for the ILP scheduler, which profiles/default does not use
SOURCE_ONLY = {"connection-pool"}  # pure Python, published without a wheel


def name_of(requirement: str) -> str:
    """The normalised distribution name at the start of a requirement line."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def closure(roots) -> set[str]:
    """Names of the distributions that `roots` need, as installed in this environment."""
    found, left = set(), [name_of(root) for root in roots]
    while left:
        name = left.pop()
        if name in found or name in LEFT_OUT:
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        found.add(name)
        left += [name_of(need) for need in needs if "extra ==" not in need]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="the node's Python, such as 3.12")
    parser.add_argument("--platform", nargs="+", required=True, help="wheel platforms it accepts")
    parser.add_argument("--all", action="store_true", help="numpy and what draws, too")
    args = parser.parse_args()
    pins = {name_of(line): line for line in CONSTRAINTS.read_text("utf-8").split()}
    names = closure(WANTED + (SCIENTIFIC + DRAWING if args.all else ())) & pins.keys()
    FOLDER.mkdir(exist_ok=True)
    for wheel in FOLDER.glob("*.whl"):
        wheel.unlink()
    node = ["download", "-d", str(FOLDER), "--only-binary=:all:", "--implementation", "cp"]
    node += ["--python-version", args.python]
    node += [word for platform in args.platform for word in ("--platform", platform)]
    own = ["wheel", "-w", str(FOLDER)]
    for how, wanted in ((node, names - SOURCE_ONLY), (own, names & SOURCE_ONLY)):
        command = [sys.executable, "-m", "pip", *how, "--quiet", "--no-deps"]
        subprocess.run([*command, *(pins[name] for name in sorted(wanted))], check=True)
    size = sum(wheel.stat().st_size for wheel in FOLDER.glob("*.whl")) / 1e6
    print(f"{len(names)} wheels for Python {args.python}, {size:.0f} MB in {FOLDER}/")
    print("the node must have torch, torchvision, timm, scikit-learn, pillow", end="")
    print("" if args.all else f", {', '.join(SCIENTIFIC)}")


if __name__ == "__main__":
    main()
