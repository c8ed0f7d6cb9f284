"""The order between groups' streams and the main one, on streams that do their work in any order that waits allow."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

import pytest
import torch

from strata.engine.group_roads import GroupRoads

CARDS = [torch.device("cuda", 0), torch.device("cuda", 1)]


class Stream:
    """Work in its order; a wait stands for all that another stream had by then."""

    def __init__(self) -> None:
        self.queue: deque[Callable[[], bool]] = deque()
        self.given = self.done = 0

    def launch(self, work: Callable[[], object]) -> None:
        self.given += 1
        self.queue.append(lambda: (work(), True)[1])

    def wait_stream(self, other: "Stream") -> None:
        awaited = other.given
        self.given += 1
        self.queue.append(lambda: other.done >= awaited)

    def advance(self) -> bool:
        if not self.queue or not self.queue[0]():
            return False
        self.queue.popleft()
        self.done += 1
        return True


class Cards:
    """What torch knows of two cards."""

    def __init__(self) -> None:
        self.now = {card: Stream() for card in CARDS}
        self.all = list(self.now.values())
        self.card_of = {id(stream): card for card, stream in self.now.items()}

    def new_stream(self, card: torch.device) -> Stream:
        made = Stream()
        self.all.append(made)
        self.card_of[id(made)] = card
        return made

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        card = self.card_of[id(stream)]
        before, self.now[card] = self.now[card], stream
        yield
        self.now[card] = before

    def finish(self, order: Random) -> None:
        while any(stream.queue for stream in self.all):
            assert any(stream.advance() for stream in order.sample(self.all, len(self.all))), "all wait for each other"


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Cards:
    made = Cards()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda card: made.now[card])
    monkeypatch.setattr(torch.cuda, "Stream", made.new_stream)
    monkeypatch.setattr(torch.cuda, "stream", made.stream)
    return made


@pytest.mark.parametrize("seed", range(20))
def test_groups_have_no_order_and_the_main_road_has_one_with_each(seed: int, cards: Cards) -> None:
    roads, done = GroupRoads([*CARDS, CARDS[0]], 2), list[str]()

    def launch(name: str) -> None:
        for place, card in enumerate(CARDS):
            cards.now[card].launch(partial(done.append, f"{name}{place}"))

    launch("read")
    for group in (0, 1):
        with roads.of_group(group):
            launch(f"window {group} ")
    roads.join(1)
    launch("copy")
    with roads.of_group(0):
        launch("later 0 ")
    cards.finish(Random(seed))
    for card in ("0", "1"):
        order = [name[:-1] for name in done if name.endswith(card)]
        assert order.index("read") == 0
        assert order.index("window 1 ") < order.index("copy") < order.index("later 0 ")
        assert order.index("window 0 ") < order.index("later 0 ")
    assert len(done) == 10


def test_a_window_starts_while_another_groups_is_held_up(cards: Cards) -> None:
    roads, done = GroupRoads(CARDS[:1], 2), list[str]()
    with roads.of_group(0):
        cards.now[CARDS[0]].queue.append(lambda: False)  # waits for the CPU
        cards.now[CARDS[0]].given += 1
    for _ in range(2):
        with roads.of_group(1):
            cards.now[CARDS[0]].launch(lambda: done.append("window"))
    while any(stream.advance() for stream in cards.all):
        pass
    assert done == ["window", "window"]
    assert cards.now[CARDS[0]] is cards.all[0], "behind the block the main road is the current one"
    assert len(roads.beside_main(CARDS[0])) == 2 and roads.beside_main(CARDS[1]) == ()


def test_with_one_group_or_without_a_card_all_is_on_the_main_road(cards: Cards) -> None:
    for roads in (GroupRoads(CARDS, 1), GroupRoads([torch.device("cpu")], 2)):
        with roads.of_group(0):
            assert [cards.now[card] for card in CARDS] == cards.all
        roads.join(0)
        assert roads.beside_main(CARDS[0]) == ()
    assert not any(stream.given for stream in cards.all)
