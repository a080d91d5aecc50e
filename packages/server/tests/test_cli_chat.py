from __future__ import annotations


def test_a_chat_keeps_its_history(phloem):
    done = phloem("chat", "--system", "S", stdin="a\nb\n")
    assert done.out == "<['S', 'a']>!\n<['S', 'a', \"<['S', 'a']>!\", 'b']>!\n"
    assert [given for given, _ in done.engine.asked][1][-1] == "b"
    assert "prompt tokens cached" in done.err


def test_reset_forgets_the_history_and_quit_ends(phloem):
    done = phloem("chat", "--system", "S", stdin="a\n/reset\nb\n/quit\nc\n")
    assert [given for given, _ in done.engine.asked] == [["S", "a"], ["S", "b"]]


def test_empty_lines_and_unknown_commands_ask_nothing(phloem):
    done = phloem("chat", stdin="\n  \n/help\n")
    assert (done.code, done.engine.asked) == (0, [])
    assert "/help is no command" in done.err


def test_a_question_that_is_refused_does_not_end_the_chat(phloem):
    def answer(given):
        return ValueError("the prompt is too long") if "bad" in given else [given[-1]]

    done = phloem("chat", stdin="bad\ngood\n", answer=answer)
    assert (done.code, done.out) == (0, "good\n")
    assert "too long" in done.err
    assert done.engine.asked[-1][0] == ["good"]


def test_an_interrupted_answer_leaves_the_conversation_without_it(phloem):
    def answer(given):
        if given[-1] == "long":
            return Interrupting()
        return [given[-1]]

    class Interrupting(list):
        def __len__(self):
            return 2

        def __iter__(self):
            yield "begin"
            raise KeyboardInterrupt

    done = phloem("chat", stdin="long\nnext\n", answer=answer)
    assert done.out == "beginnext\n"
    assert done.engine.asked[-1][0] == ["next"]


def test_an_answer_that_fails_is_not_kept(phloem):
    done = phloem("chat", stdin="a\nb\n", finish={"finish": "error", "message": "NaN"})
    assert "NaN" in done.err
    assert done.engine.asked[-1][0] == ["b"]
