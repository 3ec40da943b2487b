"""Every Python block of every page runs, and every output shown is what it prints."""

import textwrap

import doc_pages
import generate_docs
import pytest

PAGES = doc_pages.documentation()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(doc_pages.ROOT).as_posix())
def test_page_runs_and_shows_what_it_prints(page):
    assert doc_pages.refreshed(page) == page.read_text(), "the outputs shown are out of date; refresh with: make docs"


@pytest.mark.real
@pytest.mark.parametrize(
    "page", [p for p in PAGES if " real\n" in p.read_text()], ids=lambda p: p.relative_to(doc_pages.ROOT).as_posix()
)
def test_page_with_real_models(page):
    stale = "the outputs shown are out of date; refresh with: python tools/generate_docs.py --real"
    assert doc_pages.refreshed(page, real=True) == page.read_text(), stale


# Every op is compiled for every target, every family for every AMD chip.
SLOW = {"docs/backends.md": [pytest.mark.targets], "docs/rocm.md": [pytest.mark.long]}


@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW.get(n, [])) for n in generate_docs.GENERATED])
def test_generated_page_is_current(name):
    current = (doc_pages.ROOT / name).read_text()
    # The outputs inside of generated pages are checked by the test above.
    assert generate_docs.GENERATED[name]() == current, f"{name} is out of date; refresh with: make docs"


def test_the_pages_are_there():
    names = {p.relative_to(doc_pages.ROOT).as_posix() for p in PAGES}
    assert {"README.md", "CONTRIBUTING.md", "docs/text.md", "docs/errors.md", "docs/ops.md"} <= names
    assert len([n for n in names if n.startswith("docs/tutorial/")]) == 21


# The runner itself


def run(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(textwrap.dedent(text))
    return page


def test_blocks_share_a_namespace_and_outputs_are_written(tmp_path):
    page = run(
        tmp_path,
        """\
        ```python
        x = 2
        ```

        - in a list:

          ```python
          print(x + 1)
          print("two lines")
          ```

          ```output
          old
          ```
        """,
    )
    text = doc_pages.refreshed(page)
    assert "  ```output\n  3\n  two lines\n  ```\n" in text
    page.write_text(text)
    assert doc_pages.refreshed(page) == text


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("```python\n1 / 0\n```", r"page.md:1: the block fails(.|\n)*line 2(.|\n)*ZeroDivisionError"),
        ("```python raises KeyError\n1 / 0\n```", "ZeroDivisionError"),
        ("```python raises KeyError\n1\n```", "KeyError is announced, but nothing is raised"),
        ("```python\nimport warnings\nwarnings.warn('old')\n```", "UserWarning: old"),
        ("```python no-run\n1 / 0\n```", "means nothing"),
        ("```python no-run:\n1 / 0\n```", "means nothing"),
        ("```python raise KeyError\n1 / 0\n```", "means nothing"),
        ("```console raises KeyError\n$ false\n```", "means nothing"),
        ("```console\n$ echo told; false\n```", r"page.md:1: `echo told; false` fails\ntold"),
        ("```console\n$ echo 1\n1\n```\n```output\n```", "must follow"),
        ("```python\n1\n", "not closed"),
        ("```python\n1\n```\n```python no-run: why\n1\n```\n```output\n```", "must follow"),
    ],
)
def test_what_is_wrong_is_found(tmp_path, code, message):
    with pytest.raises(doc_pages.PageError, match=message):
        doc_pages.refreshed(run(tmp_path, code))


def test_announced_errors_and_skipped_blocks(tmp_path):
    text = "```python raises KeyError\n{}['a']\n```\n```output\n```\n```python no-run: needs a GPU\n1 / 0\n```\n"
    assert "```output\nKeyError: 'a'\n```" in doc_pages.refreshed(run(tmp_path, text))


def test_commands_share_a_folder_and_show_what_they_print(tmp_path):
    page = run(
        tmp_path,
        """\
        ```python
        with open("words.txt", "w") as file:
            file.write("one\\ntwo\\n")
        ```

        ```console
        $ wc -l \\
          < words.txt | tr -d ' '
        old
        $ rlx --version | cut -c1-3
        ```
        """,
    )
    text = doc_pages.refreshed(page)
    assert "$ wc -l \\\n  < words.txt | tr -d ' '\n2\n$ rlx --version | cut -c1-3\nrlx\n```\n" in text
    page.write_text(text)
    assert doc_pages.refreshed(page) == text


def test_real_blocks_wait_until_models_are_wanted(tmp_path):
    text = (
        "```python real\nprint(1)\n```\n```output\nold\n```\n```console real\n$ echo 2\n```\n```python\nprint(3)\n```\n"
    )
    page = run(tmp_path, text)
    assert doc_pages.refreshed(page) == text
    wanted = doc_pages.refreshed(page, real=True)
    assert "```output\n1\n```" in wanted and "$ echo 2\n2\n```" in wanted


def test_stale_pages_are_named(tmp_path):
    page = run(tmp_path, "old")
    assert generate_docs.write(page, "new", check=True)
    assert page.read_text() == "old"
    assert generate_docs.write(page, "new", check=False)
    assert not generate_docs.write(page, "new", check=True)
