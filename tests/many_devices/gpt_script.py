"""What `rlx launch` runs in tests: the small GPT over all devices of all processes, with checkpoints.

python gpt_script.py OUT MESH STEPS [DIE_AT]: the process with rank 1 kills itself at that step, the first time.
"""

import json
import os
import signal
import sys
from pathlib import Path

from gpt_runs import batches, parts

import rlx
from rlx.distributed import layout_of


def main(out, mesh, steps, die_at=None):
    if "RANK" in os.environ:
        rlx.distributed.initialize(timeout=60)
    layout = layout_of(rlx.Mesh.of(mesh))
    step, state = parts(layout)
    once = Path(out) / "died"

    def die(report):
        if die_at and report.step == int(die_at) and rlx.distributed.process_index() == 1 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    result = rlx.train.fit(
        step, layout.place_state(state), layout.batches(batches()), int(steps), out=out, save_every=2, callbacks=[die]
    )
    if rlx.distributed.process_index() == 0:
        rows = [row["loss"] for row in result.history]
        print("LOSSES", json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
