"""A device that works off what is launched, one thing after another, on a clock of its own. Knows no test."""

from dataclasses import dataclass


@dataclass
class Device:
    """Works off what is launched, one leg after another; `now` is the host's clock, which waiting moves on."""

    now: float = 0.0
    busy_until: float = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def mark(self) -> "DeviceMark":
        self.busy_until = max(self.busy_until, self.now)
        return DeviceMark(self, self.busy_until)

    def work(self, seconds: float) -> None:
        self.busy_until = max(self.busy_until, self.now) + seconds


@dataclass
class DeviceMark:
    """See `Mark`."""

    device: Device
    at: float

    def is_passed(self) -> bool:
        return self.device.now >= self.at

    def wait(self) -> None:
        self.device.now = max(self.device.now, self.at)

    def seconds_since(self, earlier: "DeviceMark") -> float:
        return self.at - earlier.at
