"""Constraints over the llguidance library: JSON schemas, regular expressions and choices.

Needs the extra `phloem-grammar[llguidance]`, imported when a backend is made. What that library
does not enforce to the letter is refused by `libraries/llguidance_rules.py`; grammars in EBNF too,
since its lexer takes the longest terminal and so refuses texts of a grammar. It cannot tell
distances.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import ConstraintTooComplex, GrammarError, UnsupportedConstraint
from phloem.grammar.json_schema.document import Document
from phloem.grammar.libraries.llguidance_rules import REGEX, SCHEMAS, STRING_ESCAPES
from phloem.grammar.libraries.loading import library_version, load_library
from phloem.grammar.libraries.matcher import TokenSets, WrappedMatcher, token_sets
from phloem.grammar.libraries.regex_subset import translate
from phloem.grammar.libraries.schema_subset import adapt_schema
from phloem.grammar.libraries.utf8 import utf8
from phloem.grammar.sealed import seal, unseal
from phloem.grammar.vocabulary import Vocabulary

# Otherwise forced text has a mask of one token, by a tokenizer that is not asked here.
_START = '%llguidance {"no_forcing": true}\nstart: '

MAX_BLANKS = 40
"""Blanks in a row where whitespace is `bounded`, after a line break or without."""


class LLGuidanceBackend:
    """Compiles constraints by llguidance, in the calling thread.

    Raises:
        ImportError: if llguidance is not installed.
    """

    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._library = load_library("llguidance")
        self._sets = token_sets(vocabulary)
        self._tokenizer = self._library.LLTokenizer(
            _tokenizer(vocabulary, self._sets),
            n_vocab=vocabulary.size,
            eos_token=sorted(self._sets.stop_ids),
        )
        # For whole texts, which a vocabulary need not be able to spell.
        self._bytes = self._library.LLTokenizer(_BYTES, n_vocab=len(_BYTES.tokens))
        self._header = {
            "backend": self.name,
            "library": library_version("llguidance"),
            "vocabulary": vocabulary.fingerprint,
        }

    def check(self, constraint: Constraint) -> None:
        """Raise what `compile` would.

        Raises:
            UnsupportedConstraint, GrammarError: see `GrammarBackend.check`.
        """
        self.compile(constraint)

    def compile(self, constraint: Constraint) -> LLGrammar:
        """Compile a constraint.

        Raises:
            UnsupportedConstraint, GrammarError, ConstraintTooComplex: see `GrammarBackend.compile`.
        """
        source = self._source(constraint)
        try:
            return self._grammar(source, constraint.kind)
        except _LibraryRefusal as refusal:
            raise _explained(constraint, str(refusal)) from refusal

    def deserialize(self, data: bytes) -> LLGrammar:
        """What `serialize` of a grammar of this backend gave.

        Raises:
            GrammarError: if the bytes are damaged, or of another vocabulary or version.
        """
        source = unseal(data, **self._header).body.decode()
        try:
            return self._grammar(source, "serialized")
        except _LibraryRefusal as refusal:
            raise GrammarError("a serialized grammar is damaged: compile it again") from refusal

    def _grammar(self, source: str, kind: str) -> LLGrammar:
        matcher = self._library.LLMatcher(self._tokenizer, source, log_level=0)
        if matcher.is_error():
            raise _LibraryRefusal(matcher.get_error())
        grammar = LLGrammar(self._library, matcher, source, self._sets, self._bytes, self._header)
        if not grammar.allows_anything():
            raise GrammarError(
                f"no text satisfies this {kind} constraint: look for a schema that refers to "
                "itself on every way"
            )
        return grammar

    def _source(self, constraint: Constraint) -> str:
        """The grammar in llguidance's Lark notation."""
        if constraint.kind == "regex":
            pattern = translate(constraint.source, REGEX)
            return f"{_START}/{self._library.regex_to_lark(pattern, '')}/"
        if constraint.kind == "choice":
            choices = map(json.dumps, json.loads(constraint.source))
            return _START + " | ".join(choices)
        if constraint.kind == "json_object":
            schema: dict[str, Any] = {"type": "object"}
        elif constraint.kind == "json_schema":
            schema = adapt_schema(constraint, json.loads(constraint.source), SCHEMAS)
        elif constraint.kind == "ebnf":
            raise UnsupportedConstraint(
                "", "ebnf", "its lexer would take the longest terminal: use the xgrammar backend"
            )
        else:
            raise UnsupportedConstraint("", constraint.kind, "use the fsm backend for it")
        blanks = rf"\n {{0,{MAX_BLANKS}}}| "
        options: dict[str, Any] = {"json_allowed_escapes": STRING_ESCAPES}
        if constraint.whitespace == "compact":
            options["whitespace_flexible"] = False
        else:
            options["whitespace_pattern"] = blanks
        return f"{_START}%json {json.dumps({**schema, 'x-guidance': options})}"


class LLGrammar:
    """A constraint compiled by llguidance."""

    def __init__(
        self,
        library: Any,
        start: Any,
        source: str,
        sets: TokenSets,
        byte_tokenizer: Any,
        header: dict[str, str],
    ) -> None:
        self._library = library
        self._start = start
        self._source = source
        self._sets = sets
        self._bytes = byte_tokenizer
        self._header = header

    def matcher(self) -> WrappedMatcher:
        """A matcher at the beginning of a text."""
        return WrappedMatcher(_Parser(self._start.deep_copy()), self._sets)

    def accepts(self, text: str | bytes) -> bool:
        """Whether a whole text is legal."""
        data = utf8(text)
        if data is None:
            return False
        matcher = self._library.LLMatcher(self._bytes, self._source, log_level=0)
        return bool(matcher.try_consume_tokens(list(data)) == len(data) and matcher.is_accepting())

    def allows_anything(self) -> bool:
        """Whether a text may begin, or be empty."""
        matcher = self.matcher()
        return matcher.is_complete or not matcher.is_dead

    def serialize(self) -> bytes:
        """The grammar; llguidance compiles it again, in milliseconds, where it is read."""
        return seal(self._source.encode(), **self._header)


class _Parser:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def accept(self, token: int) -> bool:
        return bool(self._checked(self._matcher.try_consume_tokens([token])))

    def fill(self, words: npt.NDArray[np.int32]) -> None:
        self._checked(self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes))

    def rollback(self, count: int) -> None:
        self._checked(self._matcher.rollback(count))

    def fork(self) -> _Parser:
        return _Parser(self._matcher.deep_copy())

    @property
    def is_complete(self) -> bool:
        return bool(self._matcher.is_accepting())

    def forced(self) -> bytes:
        return bytes(self._matcher.compute_ff_bytes())

    def _checked(self, result: Any) -> Any:
        # An error state is never left: better an error now than masks without a meaning.
        if self._matcher.is_error():
            reason = _first_part(self._matcher.get_error())
            raise ConstraintTooComplex(f"llguidance cannot go on with a constraint: {reason}")
        return result


@dataclass(frozen=True)
class _TokenTable:
    """What llguidance asks of a tokenizer: it never has to tokenize here."""

    tokens: tuple[bytes, ...]
    special_token_ids: tuple[int, ...]
    eos_token_id: int
    bos_token_id: None = None
    is_tokenizer_wrapper: bool = True

    def __call__(self, text: str | bytes) -> list[int]:
        """A stand-in: the bytes, in a vocabulary that need not have them."""
        return list(text.encode() if isinstance(text, str) else text)


_BYTES = _TokenTable((*(bytes([byte]) for byte in range(256)), b"<end>"), (256,), 256)


def _tokenizer(vocabulary: Vocabulary, sets: TokenSets) -> _TokenTable:
    tokens = tuple(token or b"" for token in vocabulary.tokens)
    special = (id_ for id_ in range(vocabulary.size) if not sets.is_text(id_))
    return _TokenTable(tokens, tuple(special), min(sets.stop_ids))


class _LibraryRefusal(Exception):
    """What llguidance says where it does not compile a grammar."""


def _explained(constraint: Constraint, message: str) -> GrammarError:
    """An error for the author of a constraint, with a place if the message names a keyword."""
    reason = _first_part(message)
    if any(word in reason.lower() for word in ("too complex", "too large", "limit", "fuel")):
        return ConstraintTooComplex(f"this {constraint.kind} constraint is too complex: {reason}")
    if constraint.kind == "json_schema" and not reason.startswith("Unsatisfiable"):
        places = Document(json.loads(constraint.source)).locations
        for word in re.findall(r"[$\w]+", reason):
            keyword = word.replace("Property", "Properties")
            if keyword not in SCHEMAS.keywords:
                continue
            for place in places:
                if not isinstance(place.schema, bool) and keyword in place.schema:
                    return UnsupportedConstraint(
                        place.pointer, keyword, f"llguidance says: {reason}"
                    )
    return GrammarError(f"llguidance cannot compile this {constraint.kind} constraint: {reason}")


def _first_part(message: str) -> str:
    # What follows is the state of the parser and the whole grammar.
    return message.strip().split("\n<state>")[0]
