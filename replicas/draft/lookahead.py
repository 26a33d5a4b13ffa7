"""What a draft model should be generating now: pure decisions, no engine, no clock, no thread.

Each session has a track: the text its verifier has confirmed, and the tokens that the model has
generated behind it. The model goes on past what was asked for, so that the next ask finds its
answer ready:

    confirmed            generated
    [c c c c c c c c c]  a b c d e f ...
                         |--wanted--|--lookahead--|--rides along--|
                                                  enough          stopped

Where a verifier goes on with the very tokens, its bonus token included, the track just goes on.
Where it goes another way, the track may find that way among its branches: continuations of the
likeliest rejections, generated beside it. Else its request is ended and another begins
behind the confirmed text, most of which is in the engine's prefix cache.

    told       a verifier's text has gone on -> what is known to follow it
    plan       which requests to end and to begin before the next engine step
    generated  a request went on
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import numpy as np

from replicas.draft.branches import Branch, Foresight
from replicas.draft.generation import Grown, Plan, Start
from replicas.draft.sessions import SessionKey
from replicas.draft.track import Known, LookaheadCounts, LookaheadSettings, Track
from replicas.messages import Tokens

TRACKS_A_PLACE: Final = 4
"""Sessions remembered for each that the engine can run; what was generated for them is kept."""


class Lookahead:
    """All tracks of one draft model. Not for several threads.

    Args:
        settings: What the config says.
    """

    def __init__(self, settings: LookaheadSettings) -> None:
        self.counts = LookaheadCounts()
        self._settings = settings
        self._foresight = Foresight()
        self._tracks: OrderedDict[SessionKey, Track] = OrderedDict()
        self._active: dict[SessionKey, None] = {}
        self._owners: dict[int, tuple[SessionKey, Branch | None]] = {}
        self._stop: list[int] = []
        self._next_request = 0

    def __len__(self) -> int:
        return len(self._tracks)

    @property
    def running(self) -> int:
        """Requests that the engine should be running."""
        return len(self._owners)

    def told(self, key: SessionKey, context: Tokens, wanted: int, salt: str) -> Known:
        """A verifier's text has gone on, and it wants so many tokens that may follow.

        Args:
            key: Its session.
            context: [tokens] int32, the whole text; must not change.
            wanted: Tokens; 0 where it only goes on.
            salt: Who may share cached blocks with it.
        """
        track = self._tracks.get(key)
        if track is None:
            track = self._tracks[key] = Track(context, salt, len(context))
            self._forget_oldest()
        else:
            self._follow(key, track, context)
        self._tracks.move_to_end(key)
        self._active[key] = None
        room = max(0, self._settings.max_model_len - len(context))
        track.wanted = min(wanted, room)
        if track.wanted:
            self.counts.asked += 1
            self.counts.ready += not track.is_short
        return track.known

    def known(self, key: SessionKey) -> Known:
        """What is known to follow a session's text now; nothing where there is no such session."""
        track = self._tracks.get(key)
        return track.known if track is not None else Known([], False)

    def forget(self, key: SessionKey) -> None:
        """The session is over; nothing happens where it is not here."""
        track = self._tracks.pop(key, None)
        if track is not None:
            self._end(track)

    def forget_peer(self, peer: bytes) -> None:
        """All sessions of a verifier are over."""
        for key in [key for key in self._tracks if key.peer == peer]:
            self.forget(key)

    @property
    def unread(self) -> int:
        """Tokens that the engine still has to read of texts that it runs."""
        return sum(track.unread for track in self._tracks.values() if track.request is not None)

    def has_work(self) -> bool:
        """Whether the engine should step, or has to be told something."""
        for key in list(self._active):
            track = self._tracks.get(key)
            if track is None or not track.needs_step(self._settings, self._foresight):
                del self._active[key]
        return bool(self._stop or self._active)

    def plan(self) -> Plan:
        """What to tell the engine before its next step. Whoever is waited for comes first."""
        for track in self._tracks.values():
            if track.request is not None and track.has_plenty(self._settings):
                self._stop_track(track)
            for branch in track.branches:
                if branch.request is not None and not track.branch_needs(branch, self._settings):
                    self._stop_branch(branch)
        wanting = [
            (not track.is_short, key, track)
            for key, track in reversed(self._tracks.items())
            if track.request is None and track.needs(self._settings)
        ]
        wanting.sort(key=lambda entry: entry[0])
        starts: list[Start] = []
        for is_spare, key, track in wanting:
            if len(self._owners) >= self._settings.places and not self._make_room(is_spare):
                break
            starts.append(self._start(key, track))
        starts += self._start_branches()
        stop, self._stop = self._stop, []
        return Plan(stop, starts)

    def generated(self, grown: Iterable[Grown]) -> set[SessionKey]:
        """Requests went on; says whose sessions have news for a verifier that waits."""
        news = set()
        for request, token, choice in grown:
            owner = self._owners.get(request)
            if owner is None:
                continue  # ended meanwhile
            self.counts.generated += 1
            key, branch = owner
            track = self._tracks[key]
            if branch is not None:
                branch.tokens.append(token)
                branch.choices.append(choice)
                continue
            if track.is_short:
                news.add(key)
            track.tokens.append(token)
            track.choices.append(choice)
            track.unread = 0
            if track.length >= self._settings.max_model_len:
                self._stop_track(track)
        return news

    def _follow(self, key: SessionKey, track: Track, context: Tokens) -> None:
        """Brings a track to its verifier's text, which has gone on."""
        before = len(track.context)
        has_shrunk, new = len(context) < before, context[before:].tolist()
        track.context = context
        if not has_shrunk and not new:
            return
        follows = not has_shrunk and track.tokens[: len(new)] == new
        branch = None if has_shrunk or follows else track.branch_along(new)
        foreseen = sum(branch.chance for branch in track.branches)
        self._foresight.went(follows, foreseen, branch is not None)
        if follows:
            self.counts.followed += 1
            track.tokens, track.choices = track.tokens[len(new) :], track.choices[len(new) :]
            self._end_branches(track)
        elif branch is not None:
            self.counts.branched += 1
            self._adopt(key, track, branch, len(new))
        else:
            self.counts.restarted += 1
            if track.request is not None:
                self._stop_track(track)
            self._end_branches(track)
            track.tokens, track.choices = [], []
            track.unread = len(context) if has_shrunk else len(new)

    def _adopt(self, key: SessionKey, track: Track, branch: Branch, used: int) -> None:
        if track.request is not None:
            self._stop_track(track)
        track.branches.remove(branch)
        self._end_branches(track)
        beyond = used - len(branch.path)
        track.tokens, track.choices = branch.tokens[beyond:], branch.choices[beyond:]
        track.request = branch.request
        if branch.request is not None:
            self._owners[branch.request] = (key, None)

    def _start(self, key: SessionKey, track: Track) -> Start:
        prompt = track.context
        if track.tokens:
            prompt = np.concatenate([prompt, np.array(track.tokens, dtype=np.int32)])
        track.request = self._number(key, None)
        return Start(track.request, prompt, track.salt, is_spare=False)

    def _start_branches(self) -> list[Start]:
        starts: list[Start] = []
        if not self._settings.fan_out:
            return starts
        short = sum(track.is_short for track in self._tracks.values())
        behind = sum(track.is_behind(self._settings) for track in self._tracks.values())
        held_up = self._foresight.step(short, behind - short)
        if not any(track.needs(self._settings) for track in self._tracks.values()):
            held_up = 0.0
        for key, track in reversed(self._tracks.items()):
            for chance, path in track.rejections(self._settings, self._foresight, held_up):
                if len(self._owners) >= self._settings.places:
                    return starts
                branch = Branch(path, chance)
                branch.request = self._number(key, branch)
                track.branches.append(branch)
                self.counts.branches += 1
                prompt = np.concatenate([track.context, np.array(path, dtype=np.int32)])
                starts.append(Start(branch.request, prompt, track.salt, is_spare=True))
        return starts

    def _number(self, key: SessionKey, branch: Branch | None) -> int:
        self._next_request += 1
        self._owners[self._next_request] = (key, branch)
        return self._next_request

    def _make_room(self, for_spare: bool) -> bool:
        """Ends a branch, or a track that nobody waits for, so that another can run."""
        for track in self._tracks.values():
            for branch in track.branches:
                if branch.request is not None:
                    self._stop_branch(branch)
                    return True
        if for_spare:
            return False
        for track in self._tracks.values():
            if track.request is not None and not track.is_short:
                self._stop_track(track)
                return True
        return False

    def _forget_oldest(self) -> None:
        while len(self._tracks) > TRACKS_A_PLACE * self._settings.places:
            self.forget(next(iter(self._tracks)))

    def _end(self, track: Track) -> None:
        if track.request is not None:
            self._stop_track(track)
        self._end_branches(track)

    def _end_branches(self, track: Track) -> None:
        for branch in track.branches:
            if branch.request is not None:
                self._stop_branch(branch)
        track.branches = []

    def _stop_track(self, track: Track) -> None:
        assert track.request is not None, "only called where it runs"
        self._stop.append(track.request)
        del self._owners[track.request]
        track.request = None

    def _stop_branch(self, branch: Branch) -> None:
        assert branch.request is not None, "only called where it runs"
        self._stop.append(branch.request)
        del self._owners[branch.request]
        branch.request = None
