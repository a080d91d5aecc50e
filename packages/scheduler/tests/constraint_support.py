"""Constraints without a grammar: a matcher of a few words, and a tokenizer that merges letters.

Both find everything by trying, so that what a test relies on is plain to see.
"""

from __future__ import annotations

import numpy as np

EOS = 0
LETTERS = "abcdef"
MERGES = ("ab", "cd", "abc", "ef", "ea", "cde", "fab", "bb", "abcde", "da")
"""The earlier ones are made first, as in byte pair encoding."""
SPELLINGS = {i: s.encode() for i, s in enumerate((*LETTERS, *MERGES), start=1)}
"""What tokens spell; all others spell nothing."""
IDS = {spelling: token for token, spelling in SPELLINGS.items()}


class MergingTokenizer:
    """Byte pair encoding over six letters: what a letter becomes depends on those beside it."""

    def __init__(self):
        self.texts = []
        """All that was encoded."""

    def encode(self, text):
        self.texts.append(text)
        if not set(text) <= set(LETTERS.encode()):
            return None
        parts = [bytes([byte]) for byte in text]
        for merge in map(str.encode, MERGES):
            i = 0
            while i + 1 < len(parts):
                if parts[i] + parts[i + 1] == merge:
                    parts[i : i + 2] = [merge]
                i += 1
        return [IDS[part] for part in parts]

    def token_bytes(self, token):
        return SPELLINGS.get(token, b"")


def spell(ids):
    """The text of tokens; the end of a text spells nothing."""
    return b"".join(SPELLINGS.get(token, b"") for token in ids).decode()


class WordsMatcher:
    """Lets an output be one of some words.

    `sealed`: whether it ends by itself where no word goes on; else only a stop token ends it.
    `breaks_at`: the text at which everything but `rollback` raises.
    """

    def __init__(self, words, *, sealed=True, breaks_at=None):
        self.words = sorted(word.encode() for word in words)
        self.sealed = sealed
        self.breaks_at = None if breaks_at is None else breaks_at.encode()
        self.texts = [b""]
        """After each token that was accepted; None once a stop token was."""

    @property
    def text(self):
        if self.breaks_at is not None and self.texts[-1] == self.breaks_at:
            raise ZeroDivisionError("this matcher is broken")
        return self.texts[-1]

    def after(self, text, token):
        """The text after a token; False where it is not allowed."""
        if text is None:
            return False
        if token == EOS:
            return None if text in self.words else False
        spelled = SPELLINGS.get(token)
        if spelled is None or not any(word.startswith(text + spelled) for word in self.words):
            return False
        return text + spelled

    def accept(self, token):
        following = self.after(self.text, token)
        if following is False:
            return False
        self.texts.append(following)
        return True

    def rollback(self, count):
        if count > len(self.texts) - 1:
            raise ValueError(f"cannot take {count} back")
        if count:
            del self.texts[-count:]

    def fork(self):
        twin = WordsMatcher([], sealed=self.sealed)
        twin.words, twin.breaks_at, twin.texts = self.words, self.breaks_at, self.texts[:]
        return twin

    def fill_mask(self, mask, row, tokens_left=None):
        following = {t: self.after(self.text, t) for t in (EOS, *SPELLINGS)}
        following = {t: text for t, text in following.items() if text is not False}
        if tokens_left is not None:
            distances = {t: 0 if s is None else self.distance(s) for t, s in following.items()}
            least = max(tokens_left - 1, min(distances.values(), default=0))
            following = {t: s for t, s in following.items() if distances[t] <= least}
        mask[row] = 0
        for token in following:
            mask[row, token // 32] |= np.int32(1 << token % 32)

    def distance(self, text):
        """The fewest tokens from a text to one of the words."""
        layer, steps = {text}, 0
        while not layer & set(self.words):
            layer = {self.after(t, token) for t in layer for token in SPELLINGS} - {False}
            steps += 1
        return steps

    @property
    def is_complete(self):
        return self.text is None or self.text in self.words

    @property
    def is_terminated(self):
        text = self.text
        return text is None or (
            self.sealed and not any(w.startswith(text) and w != text for w in self.words)
        )

    def forced(self):
        text = begin = self.text
        while text is not None and text not in self.words:
            following = {w[len(text) : len(text) + 1] for w in self.words if w.startswith(text)}
            if len(following) > 1:
                break
            text += following.pop()
        return b"" if text is None else text[len(begin) :]

    def distance_to_end(self):
        return 0 if self.text is None else self.distance(self.text)


def spread_script(history):
    """Weights for all tokens, which depend on the whole history."""
    mixed = int(np.dot(history.astype(np.int64), np.arange(1, len(history) + 1) * 7919))
    return {token: 1.0 + (mixed * (2 * token + 1) + 31 * token) % 1009 for token in range(50)}


def preferring(*outputs):
    """A script that goes for these tokens one after the other, whatever came before them."""

    def script(history):
        weights = dict.fromkeys(range(50), 1.0)
        done = sum(1 for token in history if token < 40)
        if done < len(outputs):
            weights[outputs[done]] = 100.0
        return weights

    return script
