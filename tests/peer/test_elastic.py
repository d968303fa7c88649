"""The protocol of elastic rounds, on a network with a clock of its own: who waits for whom, who is
left out, and how everybody finds together again. No models here; `test_away.py` has these."""

from itertools import pairwise, product
from random import Random
from typing import Any

import pytest

from scool.peer.elastic import SUSPECT, Elastic
from scool.peer.memory import MemoryNetwork, MemoryTransport
from scool.peer.post import Post

ROUNDS, WORK, DEADLINE = 18, 0.8, 6.0


class Diary:
    """What a peer remembers beyond its death: the rounds it took part in, when each began, and
    whom it heard."""

    def __init__(self) -> None:
        self.rounds: dict[int, float] = {}
        self.heard: dict[int, set[int]] = {}
        self.away: set[int] = set()
        self.lasted: list[float] = []
        self.admitted: dict[int, set[int]] = {}
        self.next = 0


def peer(diary: Diary, places: int, rounds: int, work: float = WORK, min_peers: int = 2) -> Any:
    """A peer that says and hears two things a round."""

    def live(me: MemoryTransport) -> Diary:
        post = Post(me, "run", places, 100_000)
        view = Elastic(post, rounds, DEADLINE, min_peers, is_back=diary.next > 0)
        for t in range(diary.next, rounds):
            post.forget(t)
            absent = view.begin(t, "")
            if view.is_away:
                diary.away.add(t)
                diary.next = t + 1
                continue
            diary.rounds[t] = me.now()
            diary.admitted[t] = set(view.newcomers)
            others = [p for p in range(places) if p != me.place and not absent[p]]
            end = me.now() + work
            while me.now() < end:
                me.wait(end)
            for slot in ("0-ready", "1-losses"):
                post.say(t, slot, {"n": t})
                heard = post.hear(t, slot, others, view.until)
                view.miss(set(others) - heard.keys())
            diary.heard[t] = set(heard)
            diary.lasted.append(me.now() - diary.rounds[t])
            diary.next = t + 1
        post.say(rounds, "end")
        last = me.now() + 60
        post.hear(
            rounds,
            "end",
            [p for p in range(places) if p != me.place],
            lambda p: last if p in me.members() else 0.0,
        )
        return diary

    return live


def run(
    network: MemoryNetwork,
    rounds: int,
    start: dict[int, float] | None = None,
    back: dict[int, list[float]] | None = None,
    **options: Any,
) -> list[Diary]:
    diaries = [Diary() for _ in range(network.places)]
    for place, diary in enumerate(diaries):
        live = peer(diary, network.places, rounds, **options)
        network.start(place, live, at=(start or {}).get(place, 0.0))
        for at in (back or {}).get(place, ()):
            network.start(place, live, at=at)
    network.run({}, until=4000)
    return diaries


def everything_at_once(seed: int) -> list[Diary]:
    """Loss, delay, a death with a return, a sleep and a partition at random times."""
    rng, places = Random(seed), 4
    network = MemoryNetwork(places, seed, loss=rng.choice([0, 0.05, 0.1]), delay=(0.01, 0.1))
    dead, asleep = rng.sample(range(places), 2)
    died = rng.uniform(0.5, 3)
    network.kill(dead, at=died)
    network.sleep(asleep, at=rng.uniform(0.5, 3), seconds=rng.uniform(0.5, 6))
    begin, seconds, side = rng.uniform(0.5, 4), rng.uniform(1, 5), rng.randrange(1, places)
    for a, b in product(range(side), range(side, places)):
        network.cut(a, b, at=begin, seconds=seconds)
    diaries = run(network, ROUNDS, back={dead: [died + rng.uniform(0.1, 4)]})
    for place in {*range(places)} - {asleep}:  # a round has one deadline, whatever happens
        assert max(diaries[place].lasted) <= WORK + DEADLINE + SUSPECT + 0.1
    return diaries


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_whatever_happens_everybody_finds_together_again(first: int) -> None:
    """Nobody is lost: when the faults are over all hear all, except for what gets lost then."""
    heard = 0
    for seed in range(first, first + 20):
        for place, diary in enumerate(everything_at_once(seed)):
            assert diary.rounds.keys() | diary.away == set(range(ROUNDS))
            late = set.union(*(diary.heard.get(t, set()) for t in range(ROUNDS - 6, ROUNDS)))
            assert late == set(range(4)) - {place}, seed
            heard += len(diary.heard.get(ROUNDS - 1, ()))
    assert heard >= 0.95 * 20 * 4 * 3


def test_who_dies_is_not_waited_for_and_comes_back_with_notice() -> None:
    """It says two rounds before with which it begins, and all count on it from then on."""
    network = MemoryNetwork(4, delay=(0.01, 0.02))
    network.kill(2, at=3.0)
    diaries = run(network, 30, back={2: [9.0]})
    ann, cat = diaries[0], diaries[2]
    assert max(ann.lasted) < 2 * WORK  # no deadline was waited for
    [entered] = [t for t, who in ann.admitted.items() if who == {2}]
    assert max(cat.away) == entered - 1 and cat.admitted[entered] == {2}
    missed = [t for t in ann.heard if 2 not in ann.heard[t]]
    assert missed == sorted(cat.away)
    assert all(diary.admitted.get(entered) == {2} for diary in diaries)


def test_one_that_never_answers_costs_one_deadline_and_then_half_a_second() -> None:
    """Two peers see each other live, and nothing passes between them."""
    network = MemoryNetwork(3)
    see = network.members
    network.cut(0, 1, at=2.0, seconds=100)
    network.members = lambda viewer: see(viewer) | {0, 1}  # type: ignore[method-assign]
    diaries = run(network, 12)
    slow = [round(seconds, 1) for seconds in diaries[0].lasted if seconds > WORK + 0.1]
    assert max(slow) <= WORK + DEADLINE + 0.1 and sum(1 for s in slow if s > 2 * WORK) <= 2
    assert all(2 in heard for heard in diaries[0].heard.values())


def test_two_who_raced_ahead_wait_for_the_others() -> None:
    """A minority that works faster does not drag all to its end."""
    network = MemoryNetwork(5, delay=(0.01, 0.02))
    diaries = [Diary() for _ in range(5)]
    for place, diary in enumerate(diaries):
        work = 0.2 if place < 2 else 1.0
        network.start(place, peer(diary, 5, 30, work))
    for a, b in product((0, 1), (2, 3, 4)):
        network.cut(a, b, at=1.5, seconds=8.0)
    network.run({}, until=1000)
    assert not any(diary.away for diary in diaries[2:])
    for place, diary in enumerate(diaries):
        assert diary.heard[29] == set(range(5)) - {place}


@pytest.mark.parametrize("saved", [(7, 7, 7), (6, 7, 9), (3, 9, 9)])
def test_all_come_back_from_checkpoints(saved: tuple[int, ...]) -> None:
    """The power failed everywhere; some had saved more than others."""
    network = MemoryNetwork(3, delay=(0.01, 0.02))
    diaries = [Diary() for _ in saved]
    for place, diary in enumerate(diaries):
        diary.next = saved[place]
        network.start(place, peer(diary, 3, 20), at=float(place))
    network.run({}, until=1000)
    for place, diary in enumerate(diaries):
        assert diary.heard[19] == set(range(3)) - {place}


def test_a_newcomer_goes_where_all_others_come_back_to() -> None:
    """All have opened their networks again to let it in: it does not begin with round 0, for which
    they would wait until it has come so far."""
    network = MemoryNetwork(4, delay=(0.01, 0.02))
    diaries = [Diary() for _ in range(4)]
    for place, diary in enumerate(diaries):
        diary.next = 9 if place < 3 else 0
        network.start(place, peer(diary, 4, 24))
    network.run({}, until=1000)
    for place, diary in enumerate(diaries):
        assert diary.heard[23] == set(range(4)) - {place}
        assert len(diary.away) <= 4 or place == 3
    assert min(diaries[3].rounds) >= 9


def test_with_too_few_nobody_goes_on() -> None:
    network = MemoryNetwork(3)
    network.kill(1, at=2.0)
    network.kill(2, at=2.0)
    diaries = run(network, 20, back={1: [50.0]}, min_peers=2)
    times = sorted(diaries[0].rounds.values())
    assert max(b - a for a, b in pairwise(times)) > 45
    assert diaries[0].heard[19] == {1}


def test_a_late_comer_finds_its_place() -> None:
    network = MemoryNetwork(3)
    diaries = run(network, 20, start={2: 12.0})
    assert diaries[2].away and diaries[2].heard[19] == {0, 1}
    assert diaries[0].rounds[0] >= DEADLINE  # for so long all were waited for
