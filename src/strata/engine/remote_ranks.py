"""Which of torchrun's processes this one is. Knows torchrun's variables; no torch, because servers ask here too."""

from collections.abc import Mapping
from dataclasses import dataclass

from strata.errors import SettingsError

_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
_NEEDED = (*_NUMBERS, "MASTER_ADDR")


@dataclass(frozen=True)
class Ranks:
    """This process among those that torchrun started."""

    rank: int
    count: int
    local: int  # of this host's
    host: str  # of rank 0 and of the store
    port: int  # of the store
    is_hosted: bool  # torchrun keeps the store; else rank 0 does


def ranks_of(variables: Mapping[str, str]) -> Ranks:
    """variables: of the environment. Raises SettingsError if torchrun did not start this process."""
    missing = [name for name in _NEEDED if not variables.get(name)]
    if missing:
        raise SettingsError(
            f"setting stages: the variable {missing[0]} is not set, so torchrun did not start this process: torchrun "
            "--nproc-per-node 2 -m strata serve --stages works"
        )
    numbers = {}
    for name in _NUMBERS:
        if not variables[name].isdecimal():
            raise SettingsError(f"setting stages: the variable {name} is {variables[name]!r}: torchrun sets a number")
        numbers[name] = int(variables[name])
    rank, count = numbers["RANK"], numbers["WORLD_SIZE"]
    if count < 2 or rank >= count:
        raise SettingsError(
            f"setting stages: this is process {rank} of {count} that torchrun started, and each has a stage: "
            "--nproc-per-node 2 works, and so does leaving --stages out"
        )
    is_hosted = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Ranks(rank, count, numbers["LOCAL_RANK"], variables["MASTER_ADDR"], numbers["MASTER_PORT"], is_hosted)
