"""The file that `--config` names, and what `--print-config` writes."""

from __future__ import annotations

from dataclasses import fields

import pytest

from phloem.server.config import ServerArgs
from phloem.server.config_file import read_config, written_config
from phloem.server.http_config import HttpArgs


@pytest.fixture
def config(tmp_path):
    """Writes a configuration; its path."""

    def write(text):
        file = tmp_path / "phloem.toml"
        file.write_text(text)
        return file

    return write


def printed(phloem, tmp_path, *arguments):
    """The options that `phloem serve` with these arguments would take."""
    done = phloem("serve", *arguments, "--print-config")
    assert done.code == 0, done.err
    file = tmp_path / "printed.toml"
    file.write_text(done.out)
    return read_config(file)


def test_options_stand_above_all_sections_or_in_their_own(config):
    text = """
        page_size = 4
        cors-origin = ["https://a.org"]
        [memory]
        disk_cache = 'C:\\cache'
        [health]
        drain_seconds = 3
    """
    assert read_config(config(text)) == {
        "page_size": 4,
        "cors_origin": ("https://a.org",),
        "disk_cache": "C:\\cache",
        "drain_seconds": 3,
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_running_request = 3", "no option max_running_request: did you mean max_running_req"),
        ("quite_different = 3", "no option quite_different: leave it out"),
        ("[memroy]\npage_size = 1", "no section [memroy]: did you mean memory?"),
        ("[http]\npage_size = 1", "page_size is in [http]: it belongs in [memory]"),
        ("page_size = 1\n[memory]\npage-size = 2", "page_size is there twice"),
        ("page_size = 'x'", "page_size is of type str: give a whole number"),
        ("page_size = true", "page_size is of type bool: give a whole number"),
        ("page_size = 1.0", "page_size is of type float: give a whole number"),
        ("drain_seconds = '5'", "drain_seconds is of type str: give a number"),
        ("offline = 1", "offline is of type int: give true or false"),
        ("model = 2026-11-30", "model is of type date: give a text"),
        ("api_key = 'secret'", "api_key is of type str: give a list of texts"),
        ("cors_origin = [1]", "cors_origin is of type list: give a list of texts"),
        ("log_level = 'loud'", "log_level 'loud' is unknown: use one of debug, info"),
        ("page_size = 3", "page_size 3 is no power of two"),
        ("disk_cache_gb = 2", "disk_cache_gb 2 was given without a disk_cache"),
        ("page_size = ", "is no TOML"),
    ],
)
def test_what_is_wrong_in_a_file_ends_with_2_file_and_key(phloem, config, text, says):
    file = config(text)
    done = phloem("serve", "--config", str(file))
    assert (done.code, f"the configuration {file}" in done.err, says in done.err) == (2, True, True)


def test_a_file_that_is_not_there_is_a_sentence(phloem, tmp_path):
    done = phloem("serve", "--config", str(tmp_path / "none.toml"))
    assert (done.code, "cannot be read: No such file" in done.err) == (2, True)


def test_the_command_line_wins_over_the_file_which_wins_over_defaults(phloem, config, tmp_path):
    file = config("port = 1\npage_size = 8\nenable_overlap = true\nmax_total_tokens = 64")
    given = printed(phloem, tmp_path, "--config", str(file), "--port", "2", "--no-enable-overlap")
    assert (given["port"], given["page_size"], given["enable_overlap"]) == (2, 8, False)
    assert (given["host"], given["max_total_tokens"]) == ("127.0.0.1", 64)


def test_a_sentence_about_the_command_line_does_not_blame_the_file(phloem, config):
    file = config("page_size = 4")
    done = phloem("serve", "--config", str(file), "--page-size", "3")
    assert "page_size 3 is no power of two" in done.err
    assert str(file) not in done.err


def test_what_is_printed_can_be_fed_back(tmp_path):
    args = ServerArgs(model='a "b" \\ \x7f\tü', page_size=2, host_cache_gb=0.5, jump_forward=False)
    http = HttpArgs(port=1, cors_origin=("https://a.org", "*"), drain_seconds=1e-7)
    file = tmp_path / "all.toml"
    file.write_text(written_config(args, http), encoding="utf-8")
    given = read_config(file)
    engine = {each.name for each in fields(ServerArgs)}
    assert ServerArgs(**{n: v for n, v in given.items() if n in engine}) == args
    assert HttpArgs(**{n: v for n, v in given.items() if n not in engine}) == http


def test_printing_leaves_secrets_out_and_says_where_they_go(phloem, config):
    file = config("api_key = ['from-the-file']")
    done = phloem("serve", "--config", str(file), "--admin-api-key", "boss", "--print-config")
    assert "# api_key is a secret: give it by PHLOEM_API_KEYS" in done.out
    assert not {"from-the-file", "boss"} & set(done.out.replace('"', " ").split())


def test_one_file_serves_commands_that_have_fewer_options(phloem, config):
    file = config("port = 1\napi_key = ['server-only']\nmax_total_tokens = 99")
    assert phloem("generate", "--config", str(file), "hello").engine.options == {
        "max_total_tokens": 99
    }


def test_no_option_of_the_engine_has_the_name_of_one_of_the_server():
    names = [each.name for each in (*fields(ServerArgs), *fields(HttpArgs))]
    assert len(names) == len(set(names))
