"""The list of runs that the first rank hands out."""

import threading
import time

from torch.distributed import HashStore  # pyright: ignore

from scool.cli.ranks import Jobs


def test_the_first_rank_waits_until_all_have_heard_the_end() -> None:
    store, left = HashStore(), list[float]()
    leader = Jobs(store)

    def follow(delay: float) -> None:
        for job in Jobs(store):
            assert job == {"run": 1}
            time.sleep(delay)  # still busy when the leader has nothing more to say
        left.append(time.monotonic())

    followers = [threading.Thread(target=follow, args=(delay,)) for delay in (0.0, 0.5)]
    for follower in followers:
        follower.start()
    leader.announce({"run": 1})
    leader.announce(None)
    leader.wait_for(2, seconds=30)
    assert store.add("heard", 0) == 2
    for follower in followers:
        follower.join(5)
    assert len(left) == 2


def test_it_does_not_wait_for_the_dead() -> None:
    leader = Jobs(HashStore())
    leader.announce(None)
    began = time.monotonic()
    leader.wait_for(1, seconds=0.2)
    assert 0.2 <= time.monotonic() - began < 5
