"""Chat templates: what they render, and what a hostile one cannot do."""

import datetime

import pytest

pytest.importorskip("jinja2")

from rlx.errors import FormatError, RlxError
from rlx.models.chat_template import MAX_TEMPLATE_CHARS, ChatTemplate

USER = [{"role": "user", "content": "hi"}]
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def render(source, messages=USER, **extra):
    return ChatTemplate(source).render(messages, **extra)


def test_a_conversation():
    wanted = "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    assert render(CHATML) == wanted + "<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == wanted
    assert render(CHATML, [{"role": "system", "content": "x"}]).startswith("<|im_start|>system\nx<|im_end|>")


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("{{ bos_token }}{{ tools | length }}", "<s>2"),
        ("{{ {'a': [1, 'ü<']} | tojson }}", '{"a": [1, "ü<"]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1) }}", '{\n "b": 1,\n "a": 2\n}'),
        ("  {% if true %}\n x\n  {% endif %}\ny", " x\ny"),
        ("{% for m in messages %}{{ loop.index0 }}{{ loop.last }}{{ loop.length }}{% endfor %}", "0True1"),
        ("{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "0234"),
        ("{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% set ns = namespace(n=0) %}{% for c in 'abc' %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "3"),
        ("{{ messages | map(attribute='role') | join(',') }}", "user"),
        ("{{ 'a' ~ 1 ~ ('b' ~ none) }}", "a1bNone"),
        ("{{ ' x '.strip() }}{{ 'a,b'.split(',')[1] }}{{ 'ab'.replace('a', 'c') }}", "xbcb"),
        ("{{ '-'.join(['x', 'y']) }}", "x-y"),
        ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", "hi"),
        ("{{ 'x\ny' | indent(2) }}", "x\n  y"),
        ("{{ 'ab' | replace('a', 'z') | upper | trim }}", "ZB"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(1) }}{{ f('a') }}", "[1][a]"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{{ undefined_thing is defined }}{{ messages is iterable }}{{ 'a' in 'abc' }}", "FalseTrueTrue"),
        ("{{ '<b>' }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 'ab' * 2 }}", "<b>33abab"),
    ],
)
def test_what_templates_use(source, wanted):
    assert ChatTemplate(source, bos_token="<s>").render(USER, tools=[1, 2]) == wanted


def test_the_date():
    assert render("{{ strftime_now('%Y') }}") == str(datetime.date.today().year)


def test_arguments_are_not_changed():
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(RlxError, match="unsafe"):
        render("{{ messages.append(1) }}", messages)
    with pytest.raises(RlxError, match="unsafe"):
        render("{{ messages[0].update(x=1) }}", messages)
    assert messages == USER


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "chat template: roles must alternate"),
        ("{{ messages[3].content }}", "has no element 3"),
        ("{{ messages[0]['content'] + 1 }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% include 'x' %}", "no loader"),
    ],
)
def test_errors_of_a_template(source, message):
    with pytest.raises(RlxError, match=message):
        render(source)


@pytest.mark.parametrize("source", ["{% for", "{{ 1 +", "{% endfor %}", "{{ x | no_such_filter }}", "{% nonsense %}"])
def test_templates_that_are_none(source):
    with pytest.raises(FormatError, match="line 1 of the template"):
        ChatTemplate(source)


def test_long_and_deep_templates():
    with pytest.raises(FormatError, match="at most"):
        ChatTemplate("x" * (MAX_TEMPLATE_CHARS + 1))
    with pytest.raises(RlxError):
        render("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")


@pytest.mark.parametrize("messages", [["hi"], [{"content": "hi"}], [3]])
def test_messages_need_a_role(messages):
    with pytest.raises(RlxError, match="message 0 must be a mapping with a role"):
        render(CHATML, messages)


def growing(start, step):
    """A loop in which n.x becomes `step` again and again."""
    return "{% set n = namespace(x=START) %}{% for i in range(99) %}{% set n.x = STEP %}{% endfor %}".replace(
        "START", start
    ).replace("STEP", step)


HOSTILE = {
    "endless loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "endless text loops": "{% set s = 'a' * 99999 %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
    "endless macros": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "endless sums": "{% set x = range(99999) | list %}{% for a in x %}{{ x | sum }}{% endfor %}",
    "large range": "{{ range(10 ** 9) | list }}",
    "very large range": "{{ range(9999999999) | list }}",
    "doubling with ~": growing("'aaaaaaaa'", "n.x ~ n.x"),
    "doubling with +": growing("'aaaaaaaa'", "n.x + n.x"),
    "doubling lists": growing("[1]", "n.x + n.x"),
    "doubling by join": growing("'aa'", "n.x.join([n.x, n.x])"),
    "repetition": "{{ 'a' * 9999999999 }}",
    "repetition reversed": "{{ 9999999999 * 'a' }}",
    "powers": "{{ 9 ** 9 ** 9 }}",
    "growing numbers": growing("7", "n.x * n.x"),
    "padding": "{{ 'a'.ljust(9999999999) }}",
    "padding by item": "{{ 'a'['center'](9999999999) }}",
    "format": "{{ '{:9999999999}'.format(1) }}",
    "percent": "{{ '%9999999999d' % 1 }}",
    "format filter": "{{ '%9999999999d' | format(1) }}",
    "replace": "{{ ('a' * 999999).replace('a', 'b' * 999) }}",
    "replace filter": "{{ ('a' * 999999) | replace('a', 'b' * 999) }}",
    "indent": "{{ ('\\n' * 999999) | indent(999) }}",
    "long output": "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    "json indent": "{{ [1] | tojson(indent=999999999) }}",
    "globals": "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['json'] }}",
    "classes": "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1] }}",
    "attr filter": "{{ '' | attr('__class__') }}",
    "namespaces": "{{ namespace.__init__.__globals__.os }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_hostile_templates(source):
    with pytest.raises(RlxError):
        render(source)


def test_threads_have_budgets_of_their_own():
    """Two renderings at once, in one thread: the inner one must not use up the outer one's steps."""
    template = ChatTemplate("{% for i in range(9) %}{{ i }}{% endfor %}{{ inner() }}")
    got = template.render(USER, inner=lambda: template.render(USER, inner=lambda: "x"))
    assert got == "012345678012345678x"
