"""`python tests/slowly.py SECONDS ...` is `scool ...` whose rounds take so much longer: a test that
stops a run then hits it before its end, however busy the machine is."""

import sys
import time

from scool.cli.main import main
from scool.engine.common import CommonVerbs

if __name__ == "__main__":
    seconds = float(sys.argv.pop(1))
    begin_round = CommonVerbs.begin_round

    def begin_late(self: CommonVerbs, round: int) -> None:
        time.sleep(seconds)
        begin_round(self, round)

    CommonVerbs.begin_round = begin_late  # type: ignore[method-assign]
    main()
