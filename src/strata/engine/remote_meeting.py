"""What the processes of a model's stages agree on before anything is loaded: who has what, the plan, the ways.

Every process makes the plan of all stages from the same numbers, so that nothing else has to be told. Knows ranks and
plans as values; no file and no weight.
"""

import dataclasses
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed

from strata.engine import stage_calls as calls
from strata.engine.memory_plan import Budget, Budgets
from strata.engine.part_loading import groups_of
from strata.engine.remote_chain import ways_of
from strata.engine.remote_copy import ROOM_BYTES, Channel, DistributedCopy, StagedCopy, open_channels
from strata.engine.remote_joining import Joined
from strata.engine.remote_line import Line
from strata.engine.remote_ranks import Ranks
from strata.engine.stage_line import StageLine
from strata.engine.stage_plans import StagePlans
from strata.errors import EngineError, ModelError, SettingsError, StrataError
from strata.settings import EngineSettings

# Of one process alone: what they decide is in its budgets, or is no other's business.
_OWN_SETTINGS = frozenset(("threads", "vram_gib", "ram_gib", "kernel_cache", "expert_profile", "verify_profile"))


@dataclass(frozen=True)
class Meeting:
    """What one process knows behind it."""

    ranks: Ranks
    plans: StagePlans  # of all stages, by rank
    copies: Sequence[DistributedCopy]  # its ends of all ways, by their numbers


def offer_of(budgets: Budgets, device: torch.device, settings: EngineSettings) -> calls.PartOffer:
    """What a process says first."""
    named = {field.name: repr(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
    said = {name: value for name, value in named.items() if name not in _OWN_SETTINGS}
    has_nccl = torch.distributed.is_nccl_available()
    return calls.PartOffer(budgets, said, socket.gethostname(), str(device), has_nccl)


def lead(
    joined: Joined,
    offer: calls.PartOffer,
    plan: Callable[[Sequence[Budgets]], StagePlans],
) -> tuple[Meeting, list[StageLine]]:
    """For rank 0: hear what the others have, decide, and tell them. Returns the lines to them as well.

    plan: of all stages. Raises SettingsError or ModelError where something does not fit
    together, and ends the others with the reason.
    """
    ranks = joined.ranks
    lines = [StageLine.open(rank, line) for rank, line in enumerate(joined.lines, start=1)]
    try:
        offers = [offer, *map(_heard, lines)]
        budgets, by_nccl = agreed_budgets(offers), have_cards_of_their_own(offers)
        plans = _fitting(plan(budgets))
        for line in lines:
            line.tell(calls.LoadPart(plans.split.cuts, budgets, plans.slots, plans.context, by_nccl))
        explains = {line.rank: line.explain for line in lines}
        return Meeting(ranks, plans, _open_ways(ranks, plans, offer, by_nccl, explains)), lines
    except StrataError as failure:
        for line in lines:
            line.end(str(failure))
        raise


def follow(
    ranks: Ranks,
    line: Line,
    offer: calls.PartOffer,
    plan: Callable[[Sequence[Budgets], Sequence[int]], StagePlans],
) -> Meeting | calls.End:
    """For another rank: say what it has, and do as rank 0 says, which may be that this is the end.

    plan: of all stages, cut as rank 0 says. Raises ModelError if it is not rank 0's.
    """
    line.send(offer)
    call = line.receive()
    if isinstance(call, calls.End):
        return call
    if not isinstance(call, calls.LoadPart):
        raise EngineError(f"the first call is {type(call).__name__}, not LoadPart")
    plans = _fitting(plan(call.budgets, call.cuts))
    if (plans.slots, plans.context) != (call.slots, call.context):
        raise ModelError(
            f"rank {ranks.rank} plans {plans.slots} slots of {plans.context:,} tokens and rank 0 {call.slots} of "
            f"{call.context:,}: give every process the same model and the same version of strata"
        )
    return Meeting(ranks, plans, _open_ways(ranks, plans, offer, call.by_nccl, {}))


def agreed_budgets(offers: Sequence[calls.PartOffer]) -> tuple[Budgets, ...]:
    """By rank: of a card in equal parts where several have it, with main memory as if all were on the host with least.

    Raises SettingsError for ranks that were started otherwise than rank 0, and for cards beside processors.
    """
    for rank, offer in enumerate(offers):
        _require_same(rank, offer, offers[0])
    ram = min((offer.budgets.ram for offer in offers), key=lambda each: each.usable)
    shared = Counter(_place(offer) for offer in offers)
    found = []
    for offer in offers:
        count, card = shared[_place(offer)] if offer.device != "cpu" else 1, offer.budgets.card
        card = Budget(card.total, card.free // count, None if card.limit is None else card.limit // count)
        found.append(dataclasses.replace(offer.budgets, card=card, ram=ram, reserve=offer.budgets.reserve // count))
    return tuple(found)


def have_cards_of_their_own(offers: Sequence[calls.PartOffer]) -> bool:
    """Whether NCCL can join all ranks, which it does not where two have one card."""
    are_cards = all(offer.device != "cpu" and offer.has_nccl for offer in offers)
    return are_cards and len({_place(offer) for offer in offers}) == len(offers)


def _place(offer: calls.PartOffer) -> tuple[str, str]:
    return offer.host, offer.device


def _require_same(rank: int, offer: calls.PartOffer, first: calls.PartOffer) -> None:
    for name in {**first.settings, **offer.settings}:
        other, wanted = offer.settings.get(name), first.settings.get(name)
        if other != wanted:
            raise SettingsError(
                f"setting {name}: rank {rank} was started with {other} and rank 0 with {wanted}: start all of them "
                "with the same settings"
            )
    if (offer.device == "cpu") != (first.device == "cpu"):
        raise SettingsError(
            f"setting stages: rank {rank} computes on {offer.device} and rank 0 on {first.device}: give every process "
            "a card, or all of them --device cpu"
        )


def _heard(line: StageLine) -> calls.PartOffer:
    offer = line.next_message()
    if not isinstance(offer, calls.PartOffer):
        raise EngineError(f"rank {line.rank} began with {type(offer).__name__}, not with what it has")
    return offer


def _fitting(plans: StagePlans) -> StagePlans:
    """Raises ModelError with the plans' refusal."""
    if plans.refusal is not None:
        raise ModelError(plans.refusal)
    return plans


def _open_ways(
    ranks: Ranks,
    plans: StagePlans,
    offer: calls.PartOffer,
    by_nccl: bool,
    explains: Mapping[int, Callable[[], None]],
) -> list[DistributedCopy]:
    """All ranks at once. explains: by rank, why it is gone.

    NCCL's ways are used once before anything is loaded, because it takes memory then: loading looks what is left.
    """
    ways = ways_of(ranks.count, groups_of(plans.plans[0]))
    copies = []
    for channel in open_channels(ways, by_nccl=by_nccl):
        other = channel.target if channel.source == ranks.rank else channel.source
        copies.append(_copy_by(channel, offer, by_nccl, ranks.rank, explains.get(other)))
    if by_nccl:
        word = torch.zeros(1, dtype=torch.int32, device=offer.device)
        for copy, (source, target) in zip(copies, ways, strict=True):
            if source == ranks.rank:
                copy.send((word,))
                copy.before_overwriting()
            elif target == ranks.rank:
                copy.receive((word,))
        torch.cuda.synchronize(word.device)
    return copies


def _copy_by(
    channel: Channel, offer: calls.PartOffer, by_nccl: bool, rank: int, explain: Callable[[], None] | None
) -> DistributedCopy:
    """This process' end of a way, or what stands for a way that neither begins nor ends here."""
    if by_nccl or offer.device == "cpu" or rank not in (channel.source, channel.target):
        return DistributedCopy(channel, explain)
    return StagedCopy(channel, torch.empty(ROOM_BYTES, dtype=torch.uint8, pin_memory=True), explain)
