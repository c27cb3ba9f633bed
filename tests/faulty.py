"""Commands on a machine that fails.

`python -m tests.faulty {"folder": PATH, "change": N} MODULE ARGUMENTS` kills a command before its
N-th change of a file in or below the folder; {"full": BYTES} lets no file grow beyond that. What
verify makes anew, which takes seconds, it takes for right; of the code it packs `docs` alone.
"""

import json
import os
import resource
import runpy
import signal
import sys

from release import bundle, verify

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.copyfile")


def main() -> None:
    fault = json.loads(sys.argv[1])
    del sys.argv[:2]
    verify.check_contents, bundle.ROOT = (lambda study, found, derive: []), bundle.ROOT / "docs"
    if "full" in fault:
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault["full"], resource.RLIM_INFINITY))
    seen = 0

    def hook(event: str, given: tuple) -> None:
        nonlocal seen
        writes = event == "open" and isinstance(given[2], int) and given[2] & os.O_ACCMODE
        if writes or event in CHANGES:
            seen += any(str(each).startswith(fault["folder"]) for each in given[:2])
            if seen == fault["change"]:
                os.kill(os.getpid(), signal.SIGKILL)

    if "change" in fault:
        sys.addaudithook(hook)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
