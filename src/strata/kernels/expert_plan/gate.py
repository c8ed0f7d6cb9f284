"""Waiting for the CPU's rows without a kernel: the mailbox's gate, where a stream waits for a value that never changes.

A captured wait has its value in the graph, so it cannot wait for a request's number; it waits until the gate is 1.
Who writes what, for a layer:

    plan        gate = 0, a fence; reads done, and writes gate = 1 if that is RAISED. The launch's last program then
                rings the door to n, or, where nobody is asked, writes gate = 1.
    the CPU     done = n, then gate = max(gate, 1).
    the stream  waits until gate >= 1; collecting then finds that done has reached n, and copies.
    a stop      done = RAISED, then gate = RAISED; once, at any moment, from any thread. So does a request that waits
                for longer than its limit.

Windows of a mailbox run one after another, so only one plan at a time writes. No wait is for ever:

1. Nobody is asked: the last program has seen the first one's arrival, so its 1 comes behind the 0.
2. The CPU answers: the door's release makes the 0 visible first, so the CPU's 1 comes behind it.
3. A stop: either the plan reads done = RAISED behind its 0 and writes 1; or its look came before the rise of done, then
   the 0, which the fence puts before that look, came before it too, and the rise of the gate is still to come. No 0 is
   written behind either, until the next plan, which reads RAISED. So nobody has to raise again for windows in flight,
   and no thread has to be left: they run to their ends, with rows that mean nothing.
4. The CPU's 1 cannot hide a stop, as it only rises; the plan's can (1 over RAISED), and lets the stream go as well.

No answer hangs on the gate: one that opens early (the answer to a window that was cut off behind its request) leaves
collecting to wait for the number, as it does without a gate. At rest it is open, so launches may run one by one. The
answer needs nothing of the device, so a stream that the driver puts behind the waiting one is late, and no more.
"""

import time

import torch

from strata.kernels.checks import check_tensor
from strata.kernels.expert_plan.tables import OPEN, Mailbox, PlanState
from strata.kernels.roads import is_reference_on
from strata.kernels.stream_waits import wait_for_word


def wait_at_gate(mailbox: Mailbox, state: PlanState) -> None:
    """What is launched behind this waits until the CPU has answered, if it was asked. The stream waits, no kernel.

    Elsewhere than on a GPU the caller waits. Raises ValueError for a mailbox without a gate, EngineError where the
    GPU's driver cannot do it.
    """
    if mailbox.gate is None:
        raise ValueError("the mailbox has no gate to wait at: make it with has_gate, or leave the wait to collect_rows")
    check_tensor("mailbox.gate", mailbox.gate, (1,), torch.int32)
    device = state.number.device
    if device.type == "cuda" and not is_reference_on(device):
        wait_for_word(mailbox.gate, OPEN, device)
        return
    while int(mailbox.gate) < OPEN:
        time.sleep(0)
