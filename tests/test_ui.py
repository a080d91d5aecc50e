"""The page at `/ui` in a browser without a window: what people do with it, and that all can."""

from __future__ import annotations

import re
import shutil
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright, which drives the browser, is not installed"
)

SECONDS = 20_000
"""To wait for something at most, in milliseconds."""
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
CHAT = "[user]{}[assistant]"
ANSWER = "Sap flows down."
SMILE = "ça 🙂!"


@pytest.fixture(scope="module")
def server(serve, write_script):
    # One token a byte; the third and fourth could have been others.
    third = {str(byte_id("p")): 0.6, str(byte_id("d")): 0.3, str(byte_id("x")): 0.1}
    script = [
        {"prompt": CHAT.format("Which way?"), "output": ANSWER},
        {"prompt": CHAT.format("Sure?"), "distributions": [{str(byte_id("a")): 1.0}, third]},
        {"prompt": "Once upon", "output": " a time"},
        {"prompt": CHAT.format("Long"), "output": "la " * 100},
        {"prompt": CHAT.format("Smile"), "output": SMILE},
        {"prompt": "Smile", "output": SMILE},
    ]
    return serve(write_script(script), grammar_backend="fsm", chunked_prefill_size=20)


def byte_id(character):
    """Of the tests' tokenizer; see `save_byte_tokenizer`."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet()).index(character) + 1


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
    if found is None:
        pytest.skip("no Chromium is on the path")
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield made
        made.close()


@contextmanager
def opened(browser, server, view="", refusals=False, **options):
    """The page; afterwards it has complained of nothing, but for refusals, of which the browser
    tells by itself, and asked nobody but its server.
    """
    options = {"viewport": DESKTOP, "reduced_motion": "reduce", **options}
    context = browser.new_context(**options)
    context.set_default_timeout(SECONDS)
    page = context.new_page()
    complaints, hosts = [], set()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page.goto(f"{server.url}/ui/{view}")
    yield page
    context.close()
    assert [each for each in complaints if "status of 4" not in each] == []
    assert bool(complaints) == refusals
    assert hosts == {urlsplit(server.url).netloc}


def expect(locator):
    return playwright.expect(locator)


@pytest.fixture(scope="module", autouse=True)
def _patience():
    playwright.expect.set_options(timeout=SECONDS)


def say(page, text):
    page.fill("#message", text)
    page.press("#message", "Control+Enter")


def answered(page, text, turns=1):
    """Waits for the whole of that many answers, of which this is the last."""
    expect(page.locator(".turn.answer .prompt")).to_have_count(turns)
    assert shown(page) == text


def shown(page):
    """The tokens of the last answer, without what is said to be none of it."""
    tokens = page.locator(".turn.answer").last.locator(".token")
    first = "all => all.map((each) => each.firstChild).filter((first) => first?.nodeType === 3)"
    return "".join(tokens.evaluate_all(f"{first}.map((first) => first.data)"))


def test_a_chat_streams_over_several_turns_and_tells_what_it_took(browser, server):
    with opened(browser, server) as page:
        expect(page.locator("#model")).to_have_text("tiny")
        say(page, "Which way?")
        answered(page, ANSWER)
        turn = page.locator(".turn.answer").last
        expect(turn.locator(".facts")).to_contain_text("first token")
        expect(turn.locator(".facts")).to_contain_text("tokens/s")
        turn.get_by_role("button", name="Regenerate").click()
        answered(page, ANSWER)
        # The prompt was computed for the first answer: all but its last token come from the cache.
        prompt = len(CHAT.format("Which way?"))
        expect(turn.locator(".prompt-bar")).to_contain_text(f"{prompt} tokens, {prompt - 1} cached")
        turn.get_by_text("Show it on the prompt").click()
        expect(turn.locator("pre .cached")).to_have_text(CHAT.format("Which way?")[:-1])
        expect(turn.locator("pre .computed")).to_have_text("]")
        say(page, "And then?")
        expect(page.locator(".turn.answer .prompt")).to_have_count(2)
        page.get_by_role("button", name="New conversation").click()
        expect(page.locator(".turn")).to_have_count(0)


def test_the_keyboard_reaches_what_else_the_model_might_have_said(browser, server):
    with opened(browser, server) as page:
        page.fill("#knob-temperature", "0")
        say(page, "Sure?")
        answered(page, "ap")
        page.locator(".tokens").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        card = page.locator("#card")
        rows = card.locator("tr").all_text_contents()
        assert rows[:3] == ["p60 %", "d30 %", "x10 %"]
        expect(page.locator("#announcer")).to_contain_text("p 60 %, d 30 %, x 10 %")
        page.keyboard.press("Escape")
        expect(card).to_be_hidden()


def test_a_text_is_continued_without_a_chat_template(browser, server):
    with opened(browser, server) as page:
        page.get_by_label("Completion", exact=True).check()
        say(page, "Once upon")
        answered(page, " a time")
        expect(page.locator(".turn.user")).to_contain_text("Once upon")


@pytest.mark.parametrize("mode", ["Chat", "Completion"])
def test_characters_of_several_tokens_are_shown_as_such(browser, server, mode):
    with opened(browser, server) as page:
        page.get_by_label(mode, exact=True).check()
        say(page, "Smile")
        answered(page, SMILE)


def test_what_is_no_part_of_the_answer_is_set_apart(browser, server):
    with opened(browser, server) as page:
        page.fill("#stop-strings", "s d")
        say(page, "Which way?")
        answered(page, "Sap flow")
        expect(page.locator(".token .special")).to_have_text(["s", " ", "d"])


def test_an_answer_that_was_left_is_no_part_of_the_next_conversation(browser, server):
    with opened(browser, server) as page:
        server.post("/pause_generation", mode="in_place")
        try:
            say(page, "Long")
            expect(page.get_by_role("button", name="Stop")).to_be_visible()
            page.get_by_role("button", name="New conversation").click()
            expect(page.locator(".turn")).to_have_count(0)
        finally:
            server.http.post("/continue_generation")
        with page.expect_request("**/v1/chat/completions") as asked:
            say(page, "Which way?")
        assert asked.value.post_data_json["messages"] == [{"role": "user", "content": "Which way?"}]
        answered(page, ANSWER)


def test_an_answer_is_stopped_and_its_request_ended(browser, server):
    with opened(browser, server) as page:
        server.post("/pause_generation", mode="in_place")
        try:
            say(page, "Long")
            stop = page.get_by_role("button", name="Stop")
            expect(stop).to_be_visible()
            page.keyboard.press("Escape")
            expect(page.locator("#composer-state")).to_have_text("Stopped.")
            expect(stop).to_be_hidden()
        finally:
            server.http.post("/continue_generation")
        expect(page.locator(".turn.answer")).to_contain_text("stopped by you")
        page.goto(f"{server.url}/ui/#operations")
        expect(page.locator("#requests tbody tr").first).to_contain_text("aborted")


def test_a_schema_is_checked_while_it_is_written_and_then_enforced(browser, server):
    with opened(browser, server) as page:
        page.select_option("#constraint-kind", "json_schema")
        verdict = page.locator("#constraint-state")
        expect(verdict).to_contain_text("The server enforces this")
        page.fill("#constraint", '{"type": ')
        expect(verdict).to_contain_text("no JSON")
        page.fill("#constraint", '{"type": "array", "uniqueItems": true}')
        expect(verdict).to_contain_text("uniqueItems")
        say(page, "Which way?")
        expect(page.locator(".turn.answer .error")).to_contain_text("The constraint is refused")
        page.fill("#constraint", '{"enum": ["up", "down"]}')
        expect(verdict).to_contain_text("The server enforces this")
        page.get_by_role("button", name="Regenerate").click()
        expect(page.locator(".turn.answer .prompt")).to_have_count(1)
        assert shown(page) in ('"up"', '"down"')
        page.select_option("#constraint-kind", "regex")
        page.fill("#constraint", "(")
        expect(verdict).to_have_class(re.compile("bad"))


def test_what_the_server_refuses_is_shown_and_the_conversation_goes_on(browser, server):
    with opened(browser, server, refusals=True) as page:
        page.fill("#knob-temperature", "-1")
        say(page, "Which way?")
        expect(page.locator(".turn.answer .error")).to_contain_text("temperature")
        page.get_by_role("button", name="Reset to the server's defaults").click()
        say(page, "Which way?")
        answered(page, ANSWER)


def test_the_tree_changes_as_requests_arrive(browser, server):
    server.http.post("/flush_cache", params={"timeout": 10})
    with opened(browser, server, "#operations") as page:
        nodes = page.locator(".icicle [role=treeitem]")
        expect(page.get_by_text("Nothing is cached yet")).to_be_visible()
        server.post("/v1/completions", prompt="The sap of a tree", max_tokens=1)
        expect(nodes).to_have_count(1)
        server.post("/v1/completions", prompt="The sap of an ivy", max_tokens=1)
        expect(nodes).to_have_count(3)
        server.post("/v1/completions", prompt="The sap", max_tokens=1, cache_salt="a secret")
        expect(nodes).to_have_count(4)
        expect(page.locator(".icicle .space")).to_have_count(2)
        assert "secret" not in page.content()
        expect(page.locator("#pool")).to_contain_text("Cached")

        page.locator(".icicle").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".node-line")).to_contain_text("12 tokens at 0 to 12")
        page.keyboard.press("Enter")
        expect(page.locator(".node-detail pre")).to_have_text("The sap of a")
        page.get_by_text("The tree as a table").click()
        expect(page.locator("#tree tbody tr")).to_have_count(4)

        for number in range(11):
            server.post("/v1/completions", prompt="Sap", max_tokens=1, cache_salt=f"{number}")
        expect(page.get_by_text("and 3 lighter namespaces with 9 tokens")).to_be_visible()
        expect(page.locator(".icicle .space")).to_have_count(10)


def refused_with(status):
    return lambda route: route.fulfill(status=status, json={"error": {"message": "No"}})


def test_what_is_old_or_forbidden_is_not_shown_as_current(browser, server):
    server.post("/v1/completions", prompt="Once upon", max_tokens=1)
    with opened(browser, server, "#operations", refusals=True) as page:
        page.clock.install()
        page.reload()
        rows = page.locator("#requests tbody tr")
        expect(rows.first).to_be_visible()
        view = page.locator("#operations")
        page.route("**/ui/api/snapshot", lambda route: None)
        page.clock.run_for(6000)
        expect(view).to_have_class("view stale")
        expect(page.locator("#operations-state")).to_contain_text("Nothing was heard")
        page.unroute("**/ui/api/snapshot")
        page.route("**/ui/api/snapshot", refused_with(403))
        page.reload()
        expect(page.locator("#operations-state")).to_have_text("No. Set the admin key above.")
        expect(rows).to_have_count(0)
        page.unroute("**/ui/api/snapshot")
        page.clock.run_for(4000)
        expect(rows.first).to_be_visible()


def test_the_head_says_how_the_server_is_and_the_models_name_is_asked_for_again(browser, server):
    with opened(browser, server, refusals=True) as page:
        page.clock.install()
        page.route("**/ready", refused_with(404))
        page.route("**/v1/models", lambda route: route.fulfill(json={"data": [{"id": "gone"}]}))
        page.reload()
        expect(page.locator("#health")).to_have_text("not ready")
        say(page, "Which way?")
        expect(page.locator(".turn.answer .error")).to_contain_text("gone")
        page.unroute("**/ready")
        page.unroute("**/v1/models")
        page.get_by_role("button", name="Regenerate").click()
        answered(page, ANSWER)
        page.clock.run_for(5000)
        expect(page.locator("#health")).to_have_text("ready")
        expect(page.locator("#model")).to_have_text("tiny")


def test_requests_are_listed_with_their_timeline_and_latencies(browser, server):
    prompt = "Once upon" + " and on" * 5  # in chunks of 20 tokens
    body = {"prompt": prompt, "max_tokens": 7, "ignore_eos": True, "cache_salt": "of its own"}
    asked = server.post("/v1/completions", **body).json()
    with opened(browser, server, "#operations") as page:
        row = page.locator("#requests tbody tr").first
        expect(row).to_contain_text(str(len(prompt)))
        button = row.get_by_role("button")
        assert button.get_attribute("title") == asked["id"]
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#timeline .stage-decode").first).to_be_visible()
        expect(page.locator("#timeline")).to_contain_text("for 44 tokens in 3 chunks")
        expect(page.locator("#timeline")).to_contain_text("for 7 tokens")
        for id in ("#ttft", "#itl"):
            expect(page.locator(f"{id} rect").first).to_be_visible()
            page.locator(id).get_by_text("As a table").click()
            expect(page.locator(f"{id} tbody tr").nth(5)).to_contain_text("up to")


def test_a_server_with_keys_is_used_with_one_and_operated_with_the_admins(
    browser, serve, write_script
):
    from phloem.server.http.auth import Access
    from phloem.server.keys import make_ring

    access = Access(make_ring(["mere"], None, "boss"))
    script = write_script([{"prompt": CHAT.format("Which way?"), "output": ANSWER}])
    server = serve(script, {"access": access})

    def use(page, key):
        page.locator("#open-key").click()
        page.fill("#key-value", key)
        page.press("#key-value", "Enter")

    with opened(browser, server, refusals=True) as page:
        expect(page.locator("#health")).to_have_text("needs a key")
        use(page, "schlüssel")
        expect(page.locator("#key-state")).to_contain_text("ASCII")
        page.keyboard.press("Escape")
        use(page, "mere")
        expect(page.locator("#model")).to_have_text("tiny")
        say(page, "Which way?")
        answered(page, ANSWER)
        page.keyboard.press("Tab")
        page.locator("nav").get_by_text("Operations").click()
        expect(page.locator("#operations-state")).to_contain_text("needs the admin key")
        use(page, "boss")
        expect(page.locator(".icicle [role=treeitem]").first).to_be_visible()
        stored = page.evaluate("[{...localStorage}, {...sessionStorage}]")
        assert "boss" not in str(stored[0])
        assert "boss" in str(stored[1])


def test_the_theme_and_the_views_are_a_key_away_and_the_theme_is_kept(browser, server):
    with opened(browser, server, color_scheme="light") as page:
        page.keyboard.press("o")
        expect(page.locator("#operations")).to_be_visible()
        page.keyboard.press("p")
        expect(page.locator("#playground")).to_be_visible()
        background = "getComputedStyle(document.body.parentElement).backgroundColor"
        light = page.evaluate(background)
        page.keyboard.press("t")
        page.keyboard.press("t")
        dark = page.evaluate(background)
        assert dark != light
        page.reload()
        assert page.evaluate(background) == dark
        page.keyboard.press("?")
        expect(page.get_by_role("heading", name="Keyboard")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type("opt?")
        expect(page.locator("#message")).to_have_value("opt?")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nobody_is_kept_out(browser, server, size):
    """axe-core finds nothing serious, light or dark, and nothing is wider than the window."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    ).Axe()
    # Axe is put into the page, which the page's own policy would forbid.
    with opened(browser, server, viewport=size, bypass_csp=True) as page:
        say(page, "Which way?")
        answered(page, ANSWER)
        page.locator(".prompt summary").click()
        expect(page.locator(".prompt pre")).to_be_visible()
        assert serious(axe, page) == []
        page.goto(f"{server.url}/ui/#operations")
        expect(page.locator(".icicle [role=treeitem]").first).to_be_visible()
        page.locator(".as-table summary").first.click()
        page.locator(".icicle").focus()
        page.keyboard.press("End")
        assert serious(axe, page) == []


def serious(axe, page):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        violations = axe.run(page).response["violations"]
        found += [
            (scheme, each["id"], [node["html"] for node in each["nodes"][:3]])
            for each in violations
            if each["impact"] in ("serious", "critical")
        ]
    return found
