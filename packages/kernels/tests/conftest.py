from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import get_args

import pytest
import torch

from phloem.kernels.cpu_backend import library
from phloem.kernels.cpu_backend.build import BuildError, Variant
from phloem.kernels.cpu_backend.machine import INSTRUCTION_SETS


def pytest_addoption(parser):
    group = parser.getgroup("native kernels")
    group.addoption(
        "--native-variant",
        choices=get_args(Variant),
        default="release",
        help="which build of the native library all tests get",
    )
    group.addoption(
        "--native-isa",
        choices=INSTRUCTION_SETS,
        help="the only instruction set that the processor is said to have",
    )


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "background(function, *args): called beside other tests; see `background`"
    )
    # Modules may load the library when they are imported, before any fixture.
    variant, isa = _option(config, "variant", "release"), _option(config, "isa", None)
    load = library._load
    if variant != "release":
        library._load = lambda isa, _, cache: load(isa, variant, cache)
    if isa:
        library.usable_instruction_sets = lambda: (isa,)
    if isa or variant != "release":
        # Who asks for a library shall not see tests skipped for want of it.
        try:
            library.load_library()
        except BuildError as error:
            raise pytest.UsageError(str(error)) from error


def _option(config, name, default):
    """Its default where pytest found this file too late to know the options."""
    return config.getoption(f"--native-{name}", default=default)


def _among_others(config):
    """Whether this process is one of several that share the tests out (pytest-xdist)."""
    return hasattr(config, "workerinput")


def pytest_collection_modifyitems(config, items):
    # What they wait for runs beside all others then.
    if not _among_others(config):
        items.sort(key=lambda item: item.get_closest_marker("background") is not None)


@pytest.fixture(scope="session", autouse=True)
def background(request):
    """Gives what the functions return that tests name by the mark `background`.

    They wait for processes that take long, and are called one after the other, from the first
    test of this folder on, so that these processes use one core while tests use another. Where
    another process runs tests meanwhile they are called by the test that asks.
    """
    if _among_others(request.config):
        yield cache(lambda function, *args: function(*args))
        return
    with ThreadPoolExecutor(1) as pool:
        begun = {
            mark.args: pool.submit(*mark.args)
            for item in request.session.items
            for mark in item.iter_markers("background")
        }
        yield lambda *call: begun[call].result()
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def native_variant(request):
    """How native code of a test's own is compiled."""
    return _option(request.config, "variant", "release")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny tensors gain nothing from threads, and lose much where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def inference_mode():
    with torch.inference_mode():
        yield
