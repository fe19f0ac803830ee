"""What tests of the page wait for in a tab: the next document is waited for, and an expression that throws fails at once."""

from __future__ import annotations

import itertools

import pytest

from tests.ui.conftest import BROWSER, Leaving, Page, Thrown, wait_until
from tests.ui.test_other_sites import other_site

pytestmark = BROWSER

NEVER = "new Promise(() => {})"


def test_what_is_asked_of_a_document_that_is_left_is_asked_of_the_next(page: Page) -> None:
    with other_site() as port:
        leave = f"void setTimeout(() => {{ location = 'http://localhost:{port}/' }}, 50)"
        page.js(leave)
        with pytest.raises(Leaving):
            page.js(NEVER)
        page.open("about:blank")
        wait_until(lambda: page.js("location.href") == "about:blank", "the first document is there again")
        page.js(leave)
        asked = itertools.count()
        wait_until(lambda: page.js(NEVER) if next(asked) == 0 else page.text("here") == "here", "the next is shown")
        assert next(asked) > 1


def test_an_expression_that_throws_fails_also_where_it_is_waited_for(page: Page) -> None:
    with pytest.raises(Thrown, match="nobody is not defined"):
        page.wait("nobody.here")
