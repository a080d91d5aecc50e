"""What tokenizers spell, in each of the ways of writing bytes, and the tree of tokens."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from grammar_vocabularies import END, SPECIAL, byte_vocabulary, toy_vocabulary
from hypothesis import given
from hypothesis import strategies as st

from phloem.grammar.dfa import Dfa
from phloem.grammar.errors import GrammarError
from phloem.grammar.narrow_trie import NarrowTrie
from phloem.grammar.regex import parse
from phloem.grammar.token_trie import TokenTrie
from phloem.grammar.vocabulary import Vocabulary


class Written:
    """Stands for a `tokenizers.Tokenizer`: all that is asked of one is its JSON."""

    def __init__(self, vocab, *, decoder=None, pre_tokenizer=None, added=(), kind="BPE"):
        self._content = {
            "model": {"type": kind, "vocab": vocab},
            "decoder": decoder,
            "pre_tokenizer": pre_tokenizer,
            "added_tokens": [
                {"id": id, "content": content, "special": special} for id, content, special in added
            ],
        }

    def to_str(self):
        return json.dumps(self._content)


BYTE_LEVEL = {"type": "ByteLevel"}
LLAMA = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def test_byte_level_tokens_are_written_in_an_alphabet_of_their_own():
    vocab = {"a": 0, "Ġthe": 1, "Ċ": 2, "Ã©": 3, "ðŁĺ": 4, "日": 5}
    vocabulary = Vocabulary.from_tokenizers(Written(vocab, decoder=BYTE_LEVEL))
    assert vocabulary.tokens == (b"a", b" the", b"\n", "é".encode(), b"\xf0\x9f\x98", "日".encode())


def test_sentencepiece_tokens_have_a_sign_for_spaces_and_names_for_bytes():
    vocab = {"<unk>": 0, "</s>": 1, "<0x0A>": 2, "▁the": 3, "▁▁": 4, "é": 5, "<0xE2>": 6, "0x0A": 7}
    added = [(0, "<unk>", True), (1, "</s>", True)]
    vocabulary = Vocabulary.from_tokenizers(
        Written(vocab, decoder=LLAMA, added=added), stop_ids=[1]
    )
    assert vocabulary.tokens == (
        *(None, None, b"\n", b" the", b"  ", "é".encode(), b"\xe2", b"0x0A"),
    )
    assert vocabulary.special_ids == {0, 1}
    assert vocabulary.stop_ids == (1,)


def test_a_unigram_model_with_metaspace_lists_its_tokens_in_order():
    metaspace = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"}
    written = Written([["_a", -1.0], ["<0x41>", -2.0]], decoder=metaspace, kind="Unigram")
    # Without byte fallback, `<0x41>` is text.
    assert Vocabulary.from_tokenizers(written).tokens == (b" a", b"<0x41>")


def test_added_tokens_spell_what_decoders_make_of_them_unless_they_are_special():
    added = [(2, "Ġ<tool>", False), (5, "<|im_start|>", True), (3, " x", False), (4, "é", False)]
    written = Written({"a": 0, "b": 1}, pre_tokenizer=BYTE_LEVEL, added=added)
    vocabulary = Vocabulary.from_tokenizers(written, size=8)
    assert vocabulary.tokens == (b"a", b"b", b" <tool>", b" x", *[None] * 4)
    assert vocabulary.special_ids == {5}
    assert vocabulary.size == 8


PIECES = ["a", "<", "tool>", " ", "▁", "Ġ", "Ċ", "é", "Ã", "©", "日", "<0x41>", "<0xE2>", "0x41>"]


@pytest.mark.parametrize("kind", ["byte level", "llama", "gemma", "metaspace"])
@given(texts=st.sets(st.lists(st.sampled_from(PIECES), min_size=1).map("".join), max_size=20))
def test_every_token_spells_what_its_tokenizer_decodes_it_to(kind, texts):
    tokenizers = pytest.importorskip("tokenizers")
    of = tokenizers.decoders
    parts = [of.Replace("▁", " "), of.ByteFallback(), of.Fuse()]
    decoder = {
        "byte level": of.ByteLevel(),
        "llama": of.Sequence([*parts, of.Strip(" ", 1, 0)]),
        "gemma": of.Sequence(parts),
        "metaspace": of.Metaspace(),
    }[kind]
    known, added = sorted(texts)[::2], sorted(texts)[1::2]
    model = tokenizers.models.BPE({text: id for id, text in enumerate(["x", *known])}, [])
    made = tokenizers.Tokenizer(model)
    made.decoder = decoder
    made.add_tokens([tokenizers.AddedToken(text, special=False) for text in added])
    vocabulary = Vocabulary.from_tokenizers(made)
    for id, spelled in enumerate(vocabulary.tokens):
        decoded = made.decode([0, id], skip_special_tokens=False)[1:]  # decoders strip the first
        if "\ufffd" not in decoded:
            assert spelled == decoded.encode()
        elif id <= len(known):
            assert spelled.decode(errors="replace") == decoded
        else:
            assert spelled is None


@pytest.mark.parametrize(
    "written",
    [
        Written({"the": 0, "##re": 1}, decoder={"type": "WordPiece"}, kind="WordPiece"),
        Written({"the": 0}),
    ],
)
def test_tokenizers_that_do_not_spell_in_bytes_are_refused(written):
    with pytest.raises(GrammarError, match="does not spell texts byte by byte"):
        Vocabulary.from_tokenizers(written)


def test_what_is_not_a_tokenizer_is_refused(tmp_path):
    for content in ("{}", "no JSON", "[]"):
        path = tmp_path / "tokenizer.json"
        path.write_text(content)
        with pytest.raises(GrammarError, match=r"not a tokenizer\.json"):
            Vocabulary.from_tokenizers(path)


def test_a_slow_tokenizer_of_transformers_is_refused():
    with pytest.raises(GrammarError, match="not a fast tokenizer"):
        Vocabulary.from_transformers(object())


def test_a_real_tokenizer_spells_the_texts_that_it_encodes(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<end>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the cat and the dog, naïve café 日本 😀\n\t"] * 3, trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    text = "the dog 日本\n😀 é<end>x"
    for vocabulary in (
        Vocabulary.from_tokenizers(made),
        Vocabulary.from_tokenizers(tmp_path / "tokenizer.json"),
    ):
        ids = made.encode(text).ids
        assert vocabulary.tokens[made.token_to_id("<end>")] is None
        spelled = b"".join(vocabulary.tokens[id] or b"<end>" for id in ids)
        assert spelled.decode() == text


def test_stop_and_special_tokens_spell_nothing_even_if_they_are_given_bytes():
    vocabulary = Vocabulary([b"a", b"</s>", b"<s>", b""], [1], [2])
    assert vocabulary.tokens == (b"a", None, None, None)


def test_ids_outside_of_the_vocabulary_are_refused():
    with pytest.raises(GrammarError, match="token 2 is outside of a vocabulary of 2"):
        Vocabulary([b"a", b"b"], [2])
    with pytest.raises(GrammarError, match="token -1 is outside"):
        Vocabulary([b"a", b"b"], [], [-1])


def test_fingerprints_differ_exactly_where_the_content_does():
    given = ([b"a", b"bc", None], [2], [])
    same = Vocabulary(*given).fingerprint
    assert Vocabulary(*given).fingerprint == same
    assert pickle.loads(pickle.dumps(Vocabulary(*given))).fingerprint == same
    others = [
        ([b"a", b"bc", None, None], [2], []),
        ([b"ab", b"c", None], [2], []),
        ([b"a", b"bc", None], [], [2]),
        ([b"a", b"bc", b"x"], [], []),
        ([b"bc", b"a", None], [2], []),
    ]
    assert len({same, *(Vocabulary(*other).fingerprint for other in others)}) == len(others) + 1


def test_bytes_that_are_no_token_by_themselves_are_told():
    assert byte_vocabulary().missing_bytes == b""
    some = Vocabulary([bytes([byte]) for byte in range(0xF1) if byte != 10] + [b"\n\n"], [])
    assert some.missing_bytes == b"\n\xf1\xf2\xf3\xf4"


def test_costs_are_the_fewest_tokens():
    vocabulary = Vocabulary([b"a", b"b", b"aa", b"aab", b"ba"], [])
    assert [vocabulary.cost(text) for text in (b"", b"a", b"aab", b"aaba", b"aaaa", b"aaaab")] == [
        *(0, 1, 1, 2, 2, 2)
    ]
    assert vocabulary.cost(b"xa") >= 1 << 30
    assert vocabulary.cost(b"a") == 1, "the rest of a text that cannot be spelled"


@pytest.mark.parametrize("pattern", ["[a-z ]+", ".*", r"(\{|\[)\"\w*", "", "é|ü.*"])
def test_a_sweep_tells_where_each_token_ends_and_where_others_leave(pattern):
    vocabulary = toy_vocabulary()
    trie, dfa = vocabulary.trie, parse(pattern)
    for state in range(min(dfa.states, 6)):
        everything = (
            NarrowTrie(trie, dfa.alphabet).sweep(dfa, state, None),
            NarrowTrie(trie, bytes(range(256))).sweep(dfa, state, None),
            trie._sweep_alive(dfa, state, (0,)),
            trie._sweep_few(dfa, state, (0,)),
        )
        expected = {
            id: end
            for id, token in enumerate(vocabulary.tokens)
            if token and (end := dfa.run(token, state)) >= 0
        }
        for sweep in (*everything, trie.sweep(dfa, state)):
            ends = dict(zip(sweep.tokens.tolist(), sweep.ends.tolist(), strict=True))
            assert ends == expected
            exits = zip(sweep.exits, sweep.exit_states, sweep.exit_bytes, strict=True)
            assert len(set(sweep.exits.tolist())) == len(sweep.exits)
            for node, at, byte in exits:
                assert dfa.step(int(at), int(byte)) == -1
                assert trie.labels[node] == byte
                assert dfa.run(spelled(trie, int(trie.parents[node])), state) == at


def spelled(trie, node):
    text = bytearray()
    while node:
        text.append(trie.labels[node])
        node = int(trie.parents[node])
    return bytes(reversed(text))


def test_the_tree_holds_every_token_once():
    trie = TokenTrie([b"ab", None, b"a", b"ab", b"b"])
    found = {}
    for node in range(len(trie.labels)):
        for token in trie.tokens_at(node):
            found.setdefault(token, spelled(trie, node))
        for child in trie.children(node):
            assert trie.child(node, trie.labels[child]) == child
            assert trie.parents[child] == node
        assert trie.has_children(node) == (len(trie.children(node)) > 0)
    assert found == {0: b"ab", 2: b"a", 3: b"ab", 4: b"b"}
    assert trie.child(0, ord("z")) == -1
    assert trie.subtree_sizes.tolist() == [4, 2, 1, 1]
    assert np.array_equal(np.sort(trie.tokens), [0, 2, 3, 4])


def test_a_tree_of_no_tokens_is_its_root():
    trie = TokenTrie([None, None])
    assert trie.labels.tolist() == [0]
    assert len(trie.sweep(Dfa.any_text(), 0).tokens) == 0
    assert END not in trie.tokens
    assert SPECIAL not in trie.tokens


@pytest.mark.parametrize("leaving", [b'"\\', b"a", b"", bytes(range(256))])
@pytest.mark.parametrize("pattern", ["[a-z ]+", "-*", "[ab]{1,300}", '[^"]*'])
def test_exits_by_other_bytes_than_those_asked_for_are_left_out(pattern, leaving):
    """Of dashes alone a tree is deep and narrow; of letters wide; of both, one and then the other.

    Each is swept in the part of the vocabulary that its bytes lead to.
    """
    words = [bytes((a, b)) for a in b'abcxyz -"' for b in range(256)]
    trie, dfa = TokenTrie([*words, *(b"-" * n for n in range(3, 70))]), parse(pattern)
    for state in range(min(dfa.states, 3)):
        every, some = trie._sweep_alive(dfa, state, (0,)), trie.sweep(dfa, state, (0,), leaving)
        assert sorted(some.tokens) == sorted(every.tokens)
        assert set(_exits(some)) == {exit for exit in _exits(every) if exit[2] in leaving}
        for alphabet in (dfa.alphabet, bytes(range(256))):
            narrow = NarrowTrie(trie, alphabet).sweep(dfa, state, leaving)
            assert dict(zip(narrow.tokens, narrow.ends)) == dict(zip(every.tokens, every.ends))
            assert narrow.end_states == every.end_states
            assert set(_exits(narrow)) == set(_exits(some))


def test_parts_that_bytes_lead_to_are_kept_while_they_are_used():
    trie = TokenTrie([bytes((a, b)) for a in range(256) for b in range(64)])
    made = []

    def sweep(pattern):
        before = dict(trie._narrow)
        trie.sweep(parse(pattern), 0)
        made.extend(key for key in trie._narrow if key not in before)

    for i in range(30):  # all but one byte: one part for all of them
        sweep(f"[^{chr(ord('a') + i % 15)}]+")
        sweep("[0-9A-Z]+")  # used all the time
        sweep(f"[!-{chr(ord('B') + i % 15)}]+")  # each displaces one that was used long before
    assert len([key for key in made if len(key) == 256]) == 1
    assert made.count(bytes(sorted(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"))) == 1
    assert len(trie._narrow) == 8


def _exits(sweep):
    return zip(sweep.exits.tolist(), sweep.exit_states.tolist(), sweep.exit_bytes.tolist())
