"""Description of a scenario."""

import collections.abc
import dataclasses

ALL_SERVERS = ("floor", "tailcoat", "nginx", "h2o", "lighttpd", "apache", "caddy", "tailcoat-again")


@dataclasses.dataclass(frozen=True)
class Scenario:
    name: str
    summary: str
    run: collections.abc.Callable
    """Takes a Bench."""
    servers: tuple = ALL_SERVERS
    rounds: int = 3
    slots: int = 8
    seconds: float = 0.4
    add_arguments: collections.abc.Callable = lambda parser: None
    enters_peer_root: bool = True
    """True if peers may run in another root directory (`--peer-root`), which takes some milliseconds to enter."""
