"""The verifier's draft workers: asks them once an engine step, and knows what they said.

Runs inside the engine's step, on its only thread. Sending never blocks, nothing is waited
for past the step's deadline, and whatever a worker does costs drafts, not an exception.

    exchange    read what is there -> ask each session's worker -> wait, if it is worth it
    draft       what is known by now to follow a context

Answers that come late or run ahead are kept, and serve later steps without any waiting
(`continuations.py`). A session stays with one worker as long as that one's breaker allows
(`breaker.py`) and no worker comes or goes (`placement.py`); one worker's socket and books are a
`DraftLink`.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import zmq

from replicas.messages import MAX_CONTEXT_TOKENS, SPOKEN, Codec, Tokens
from replicas.verifier.continuations import Known, SourcedDraft
from replicas.verifier.draft_ledger import Row
from replicas.verifier.draft_link import DraftLink, WorkerAddress
from replicas.verifier.draft_stats import PoolStats, Tally
from replicas.verifier.patience import Outlook, Patience
from replicas.verifier.placement import Load, placed

__all__ = ["DraftPool", "PoolStats", "Row", "SourcedDraft", "WorkerAddress"]

MODEL: Final = "model"
"""The draft kind that reads a prompt before it drafts."""
MAX_SOCKETS: Final = 4096
"""Of one pool: more than there can be workers, as closed ones go a moment later."""
NAP_S: Final = 50e-6
"""Between looks in the last millisecond of a wait; ZeroMQ waits whole milliseconds."""


class _Session:
    """One sequence: what is known of it, and its workers, its own first."""

    __slots__ = ("known", "links", "links_of", "worker_id")

    def __init__(self) -> None:
        self.known = Known()
        self.links: tuple[DraftLink, ...] = ()
        self.links_of = -1
        self.worker_id: str | None = None


class DraftPool:
    """All draft workers of one verifier. Not for several threads.

    Memory grows with the sessions that were passed to `exchange` and not yet to its `forget`.

    Args:
        codec: Packs messages under the cluster's token.
        vocab_size: Of the target; a worker whose tokens are not below lies.
        tokenizer_fingerprint: Of the target; workers with another are not asked.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        codec: Codec,
        vocab_size: int,
        tokenizer_fingerprint: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._codec = codec
        self._vocab_size = vocab_size
        self._fingerprint = tokenizer_fingerprint
        self._clock = clock
        self._tally = Tally()
        self._sockets: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._links: dict[str, DraftLink] = {}
        self._links_version = 0
        self._distances: dict[str, int] = {}
        self._refused: dict[str, str] = {}
        self._own: Counter[str] = Counter()
        self._others: dict[str, Load] = {}
        self._sessions: dict[int, _Session] = {}
        self._step = 0
        self.chosen_s = 0.0
        """What the last exchange waited for tokens that were being made, seconds."""

    @property
    def stats(self) -> PoolStats:
        """What happened so far."""
        return self._tally.snapshot()

    @property
    def has_model(self) -> bool:
        """Whether any worker has a draft model."""
        return any(MODEL in link.address.kinds for link in self._links.values())

    def states(self) -> dict[str, str]:
        """Each live worker's breaker (`closed`, `open`, `half_open`), or `refused: ` and why."""
        return {name: link.breaker.state for name, link in self._links.items()} | self._refused

    def update(self, workers: Sequence[WorkerAddress]) -> None:
        """Takes the workers that are live now: connects to new ones, drops those that are gone.
        One whose address changed in any way counts as new.
        """
        live: dict[str, WorkerAddress] = {}
        self._refused = {}
        for worker in workers:
            refusal = self._refusal(worker)
            if refusal is None:
                live[worker.worker_id] = worker
            else:
                self._refused[worker.worker_id] = f"refused: {refusal}"
        changed = False
        for worker_id, link in list(self._links.items()):
            if live.get(worker_id) != link.address:
                self._links.pop(worker_id).close()
                changed = True
        for worker_id, worker in live.items():
            if worker_id not in self._links:
                link = DraftLink(self._sockets, worker, self._codec, self._vocab_size, self._tally)
                link.open(self._clock())
                self._links[worker_id] = link
                changed = True
        self._links_version += changed
        distances = {name: worker.distance for name, worker in live.items()}
        self._distances = distances if len(set(distances.values())) > 1 else {}
        self._others = {
            name: replace(worker.load, sessions=max(0, worker.load.sessions - self._own[name]))
            for name, worker in live.items()
        }

    def _refusal(self, worker: WorkerAddress) -> str | None:
        if not set(worker.protocols) & set(SPOKEN):
            return f"speaks protocols {list(worker.protocols)}, this verifier {list(SPOKEN)}"
        if worker.tokenizer_fingerprint != self._fingerprint:
            return "another tokenizer"
        return None

    def exchange(
        self,
        step: Mapping[int, Row],
        forget: Collection[int],
        deadline_s: float,
        patience: Patience | None = None,
    ) -> None:
        """One engine step: asks the workers, and takes in what they say.

        Waits only for rows that want tokens, have not enough of them, and whose worker still
        owes this step's answer.

        Args:
            step: What each running sequence needs, by session.
            forget: Sessions that are over; none of them comes again.
            deadline_s: Longest wait, seconds from now. 0: only what is there already counts.
            patience: Says how long to go on waiting for what is still being made, as soon as every
                worker has said what there is. None: to the deadline.
        """
        self.chosen_s = 0.0
        now_s = self._clock()
        until_s = now_s + deadline_s
        for session in forget:
            if (over := self._sessions.pop(session, None)) is not None:
                self._counts_for(over, None)
            for link in self._links.values():
                link.forget(session)
        if not self._links:
            return
        self._take_in(self._links.values(), 0)
        for link in self._links.values():
            link.check_silence(now_s)
        self._step += 1
        placed = self._placed(step, now_s)
        for link in self._links.values():
            rows = placed.get(link.address.worker_id)
            if rows is not None or link.has_news:
                link.ask(self._step, rows or {}, now_s)
        if deadline_s > 0:
            self._wait(placed, until_s, patience)

    def draft(self, session: int, context: Tokens, wanted: int) -> SourcedDraft | None:
        """At most `wanted` tokens that may follow `context`, or None where no answer holds.

        Args:
            session: As in `exchange`.
            context: [tokens] int32, the whole sequence so far.
            wanted: Tokens wanted.
        """
        state = self._sessions.get(session)
        return state.known.draft(context, wanted) if state is not None else None

    def close(self) -> None:
        """Drops all workers; nothing can be asked afterwards. Does not wait for anything."""
        for link in self._links.values():
            link.close()
        self._links = {}
        self._refused = {}
        self._sessions = {}
        self._sockets.term()

    def _placed(self, step: Mapping[int, Row], now_s: float) -> dict[str, dict[int, Row]]:
        """The rows of each worker that is to be asked, by its id."""
        rows: dict[str, dict[int, Row]] = {}
        for session, row in step.items():
            length = len(row.context)
            if not 0 < length <= MAX_CONTEXT_TOKENS:
                continue
            state = self._sessions.get(session)
            if state is None:
                state = self._sessions[session] = _Session()
            if state.links_of != self._links_version:
                names = placed(session, self._loads(), state.worker_id, self._distances)
                state.links = tuple(self._links[name] for name in names)
                state.links_of = self._links_version
            state.known.shrunk_to(length)
            # A probe is spent on a row that wants tokens: it surely is an ask.
            probing = row.wanted > 0
            for link in state.links:
                if link.may_be_asked(now_s, probing):
                    worker_id = link.address.worker_id
                    if state.worker_id != worker_id:
                        self._tally.count["moved"] += state.worker_id is not None
                        self._counts_for(state, worker_id)
                    rows.setdefault(worker_id, {})[session] = row
                    break
        return rows

    def _loads(self) -> dict[str, Load]:
        """Of each worker: what it told, and what this verifier has given it since."""
        return {
            name: replace(load, sessions=load.sessions + self._own[name])
            for name, load in self._others.items()
        }

    def _counts_for(self, state: _Session, worker_id: str | None) -> None:
        """The session is with this worker now, and no longer with the one before."""
        if state.worker_id is not None:
            self._own[state.worker_id] -= 1
            if not self._own[state.worker_id]:
                del self._own[state.worker_id]
        if worker_id is not None:
            self._own[worker_id] += 1
        state.worker_id = worker_id

    def _wait(
        self,
        placed: Mapping[str, Mapping[int, Row]],
        until_s: float,
        patience: Patience | None,
    ) -> None:
        """Until every row has enough, its worker has answered, it is no longer worth it, or the
        deadline is there. Workers that let that pass have missed it.
        """
        started_s = now_s = self._clock()
        owing = self._owing(placed, until_s)
        if not owing:
            return
        self._tally.count["waits"] += 1
        choosing_since_s: float | None = None
        while owing and now_s < until_s:
            next_look_s = until_s
            if patience is not None and (outlooks := self._outlooks(placed, now_s)) is not None:
                choosing_since_s = now_s if choosing_since_s is None else choosing_since_s
                next_look_s = min(until_s, now_s + patience(outlooks))
                if next_look_s <= now_s:
                    owing = []
                    break
            whole_ms = int((next_look_s - now_s) * 1000)
            if not self._take_in(owing, whole_ms) and not whole_ms:
                time.sleep(min(NAP_S, next_look_s - now_s))
            owing = self._owing(placed, until_s, owing)
            now_s = self._clock()
        self._tally.wait_s += now_s - started_s
        if choosing_since_s is not None:
            self.chosen_s = now_s - choosing_since_s
        for link in owing:
            link.miss(self._step, now_s)

    def _outlooks(
        self, placed: Mapping[str, Mapping[int, Row]], now_s: float
    ) -> dict[int, Outlook] | None:
        """Of all rows that want tokens; None while a worker has not begun to answer."""
        outlooks: dict[int, Outlook] = {}
        for worker_id, rows in placed.items():
            owes = self._links[worker_id].owes(self._step)
            for session, row in rows.items():
                if not row.wanted:
                    continue
                outlook = self._sessions[session].known.outlook(row.context, row.wanted, now_s)
                if outlook is not None:
                    outlooks[session] = outlook
                elif owes:
                    return None
        return outlooks

    def _owing(
        self,
        placed: Mapping[str, Mapping[int, Row]],
        until_s: float,
        among: Collection[DraftLink] | None = None,
    ) -> list[DraftLink]:
        """The workers of whose answer to this step something may come in time that brings some
        row more.
        """
        return [
            link
            for link in (self._links.values() if among is None else among)
            if link.owes(self._step)
            and any(
                row.wanted > 0
                and not self._sessions[session].known.is_enough(row.context, row.wanted, until_s)
                for session, row in placed.get(link.address.worker_id, {}).items()
            )
        ]

    def _take_in(self, links: Collection[DraftLink], timeout_ms: int) -> bool:
        """Reads what is there, or what comes first within the time; says whether there was any."""
        by_socket: dict[Any, DraftLink] = {
            link.socket: link for link in links if link.socket is not None
        }
        try:
            readable = zmq.zmq_poll([(socket, zmq.POLLIN) for socket in by_socket], timeout_ms)
        except zmq.ZMQError:
            # The links look for themselves, and find which of them it was.
            readable = [(socket, 0) for socket in by_socket]
        for socket, _ in readable:
            now_s = self._clock()
            for session, continuation in by_socket[socket].take_in(now_s):
                state = self._sessions.get(session)
                if state is not None:
                    state.known.add(continuation, now_s)
        return bool(readable)
