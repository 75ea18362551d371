"""Options of the test run.

``--long``     runs of tests that repeat rounds take ten times as many
``--clients``  also run the tests of released clients, which install them from the package index
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="repeat the rounds of fault tests 30 times instead of 3")
    parser.addoption("--clients", action="store_true", help="run the tests that install released clients")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "clients: needs a released client from the package index; runs with --clients")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--clients"):
        return
    skip = pytest.mark.skip(reason="needs --clients")
    for item in items:
        if "clients" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def rounds(request: pytest.FixtureRequest) -> int:
    """How often a test of faults repeats its round."""
    return 30 if request.config.getoption("--long") else 3
