"""Constraints over the xgrammar library: JSON schemas, regular expressions, choices and EBNF.

Needs the extra `phloem-grammar[xgrammar]`, imported when a backend is made. What that library does
not enforce to the letter is refused by `libraries/xgrammar_rules.py`. It cannot tell distances, and
knows nothing of structural tags here: the `fsm` backend does.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import GrammarError, UnsupportedConstraint
from phloem.grammar.libraries.loading import library_version, load_library
from phloem.grammar.libraries.matcher import TokenSets, WrappedMatcher, token_sets
from phloem.grammar.libraries.regex_subset import translate
from phloem.grammar.libraries.schema_subset import adapt_schema
from phloem.grammar.libraries.utf8 import SurrogateTokens, surrogate_tokens, utf8
from phloem.grammar.libraries.xgrammar_rules import REGEX, SCHEMAS, check_ebnf
from phloem.grammar.sealed import seal, unseal
from phloem.grammar.vocabulary import Vocabulary

MAX_BLANKS = 40
"""Blanks in a row where whitespace is `bounded`; a line break and its indent count together."""


class XGrammarBackend:
    """Compiles constraints by xgrammar, in the calling thread.

    Raises:
        ImportError: if xgrammar is not installed.
    """

    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._library = load_library("xgrammar")
        self._surrogates = surrogate_tokens(vocabulary)
        self._sets = token_sets(vocabulary, without=self._surrogates.whole)
        # A token without bytes is special to xgrammar: never matched by a text.
        texts = [token or b"" for token in vocabulary.tokens]
        self._info = self._library.TokenizerInfo(
            texts,
            self._library.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=sorted(self._sets.stop_ids),
        )
        self._compiler = self._library.GrammarCompiler(
            self._info, max_threads=1, cache_enabled=False
        )
        self._header = {
            "backend": self.name,
            "library": library_version("xgrammar"),
            "vocabulary": vocabulary.fingerprint,
        }

    def check(self, constraint: Constraint) -> None:
        """Raise what `compile` would for what is not enforced here.

        Raises:
            UnsupportedConstraint, GrammarError: see `GrammarBackend.check`.
        """
        self._source(constraint)

    def compile(self, constraint: Constraint) -> XGrammar:
        """Compile a constraint.

        Raises:
            UnsupportedConstraint, GrammarError: as `check`, and for what xgrammar itself refuses.
        """
        source = self._source(constraint)
        try:
            compiled = self._compile(constraint, source)
        except (RuntimeError, ValueError) as error:
            raise _refusal(constraint, str(error)) from error
        grammar = self._grammar(compiled)
        if not grammar.allows_anything():
            raise GrammarError(
                f"no text satisfies this {constraint.kind} constraint: look for a rule or a schema "
                "that refers to itself on every way"
            )
        return grammar

    def deserialize(self, data: bytes) -> XGrammar:
        """What `serialize` of a grammar of this backend gave.

        Raises:
            GrammarError: if the bytes are damaged, or of another vocabulary or version.
        """
        body = unseal(data, **self._header).body
        try:
            compiled = self._library.CompiledGrammar.deserialize_json(body.decode(), self._info)
        except (RuntimeError, ValueError) as error:
            raise GrammarError("a serialized grammar is damaged: compile it again") from error
        return self._grammar(compiled)

    def _grammar(self, compiled: Any) -> XGrammar:
        return XGrammar(self._library, compiled, self._sets, self._surrogates, self._header)

    def _source(self, constraint: Constraint) -> str:
        """What to give to xgrammar: a schema, a regular expression or a grammar in EBNF."""
        if constraint.kind == "json_schema":
            return json.dumps(adapt_schema(constraint, json.loads(constraint.source), SCHEMAS))
        if constraint.kind == "json_object":
            return '{"type":"object"}'
        if constraint.kind == "regex":
            return translate(constraint.source, REGEX)
        if constraint.kind == "choice":
            return "root ::= " + " | ".join(map(_quoted, json.loads(constraint.source)))
        if constraint.kind == "ebnf":
            check_ebnf(constraint.source)
            return constraint.source
        raise UnsupportedConstraint("", constraint.kind, "use the fsm backend for it")

    def _compile(self, constraint: Constraint, source: str) -> Any:
        if constraint.kind in ("json_schema", "json_object"):
            compact = constraint.whitespace == "compact"
            return self._compiler.compile_json_schema(
                source,
                any_whitespace=not compact,
                separators=(",", ":"),
                max_whitespace_cnt=None if compact else MAX_BLANKS,
                strict_mode=False,
            )
        if constraint.kind == "regex":
            return self._compiler.compile_regex(source)
        return self._compiler.compile_grammar(source)


class XGrammar:
    """A constraint compiled by xgrammar."""

    def __init__(
        self,
        library: Any,
        compiled: Any,
        sets: TokenSets,
        surrogates: SurrogateTokens,
        header: dict[str, str],
    ) -> None:
        self._library = library
        self._compiled = compiled
        self._sets = sets
        self._surrogates = surrogates
        self._header = header

    def matcher(self) -> WrappedMatcher:
        """A matcher at the beginning of a text."""
        parser = _Parser(self._library.GrammarMatcher(self._compiled), self._surrogates)
        return WrappedMatcher(parser, self._sets)

    def accepts(self, text: str | bytes) -> bool:
        """Whether a whole text is legal."""
        data = utf8(text)
        if data is None:
            return False
        matcher = self._library.GrammarMatcher(self._compiled)
        return bool((not data or matcher.accept_string(data)) and matcher.is_completed())

    def allows_anything(self) -> bool:
        """Whether a text may begin, or be empty."""
        matcher = self.matcher()
        return matcher.is_complete or not matcher.is_dead

    def serialize(self) -> bytes:
        """The compiled form."""
        return seal(self._compiled.serialize_json().encode(), **self._header)


class _Parser:
    def __init__(self, matcher: Any, surrogates: SurrogateTokens) -> None:
        self._matcher = matcher
        self._surrogates = surrogates
        self._taken = 0
        self._firsts: list[int] = []
        """After how many tokens half a surrogate pair could have begun."""

    def accept(self, token: int) -> bool:
        if self._may_go_on and token in self._surrogates.second:
            return False
        if not self._matcher.accept_token(token):
            return False
        self._taken += 1
        if token in self._surrogates.first:
            self._firsts.append(self._taken)
        return True

    def fill(self, words: npt.NDArray[np.int32]) -> None:
        self._matcher.fill_next_token_bitmask(words[np.newaxis])
        if self._may_go_on:
            words &= self._surrogates.not_second

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)
        self._taken -= count
        while self._firsts and self._firsts[-1] > self._taken:
            self._firsts.pop()

    def fork(self) -> _Parser:
        other = _Parser(self._matcher.fork(), self._surrogates)
        other._taken = self._taken
        other._firsts = self._firsts.copy()
        return other

    @property
    def _may_go_on(self) -> bool:
        return bool(self._firsts) and self._firsts[-1] == self._taken

    @property
    def is_complete(self) -> bool:
        return bool(self._matcher.is_completed())

    def forced(self) -> bytes:
        return str(self._matcher.find_jump_forward_string()).encode()


def _quoted(text: str) -> str:
    """A literal of xgrammar's EBNF."""
    plain = {'"': '\\"', "\\": "\\\\"}
    return (
        '"'
        + "".join(plain.get(c, c) if 32 <= ord(c) < 127 else f"\\U{ord(c):08x}" for c in text)
        + '"'
    )


def _refusal(constraint: Constraint, message: str) -> GrammarError:
    # "[12:34:56] /a/file.cc:123: what went wrong\n": the time and the place are of no use.
    reason = re.sub(r"^\[[\d:]+\] \S+: ", "", message.strip())
    return GrammarError(f"xgrammar cannot compile this {constraint.kind} constraint: {reason}")
