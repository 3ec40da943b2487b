"""Chat templates: what they render, and what a hostile one cannot do."""

import datetime
import os
import signal
import subprocess
import sys
import threading

import pytest

pytest.importorskip("jinja2")

from rlx.errors import FormatError, RlxError
from rlx.models import chat_template_process
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
        ("{% set c = joiner(', ') %}{% for i in range(3) %}{{ c() }}{{ i }}{% endfor %}", "0, 1, 2"),
        ("{% set c = cycler('a', 'b') %}{% for i in range(3) %}{{ c.next() }}{% endfor %}", "aba"),
        ("{{ messages | map(attribute='role') | join(',') }}", "user"),
        ("{{ 'a' ~ 1 ~ ('b' ~ none) }}", "a1bNone"),
        ("{{ ' x '.strip() }}{{ 'a,b'.split(',')[1] }}{{ 'ab'.replace('a', 'c') }}", "xbcb"),
        ("{% for m in messages %}{{ m.content.strip() }}{{ ','.join(['x', 'y']) }}{% endfor %}", "hix,y"),
        ("{% block b %}{{ messages[0].content.strip() }}{% endblock %}", "hi"),
        ("{% macro f(m) %}{{ m.content.startswith('h') }}{% endmacro %}{{ f(messages[0]) }}", "True"),
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


def test_tools_and_documents_are_none_unless_given():
    source = "{{ tools is none }}{{ documents is defined }}{{ others is defined }}"
    assert render(source) == "TrueTrueFalse"
    assert render(source, tools=[]) == "FalseTrueFalse"


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


# What C code does with small arguments: shared structures that are exponentially large when they are looked at.
SHARED = growing("[1]", "[n.x, n.x]")
HOSTILE_FOR_C = {
    "printing": "{{ n.x }}",
    "json": "{{ n.x | tojson }}",
    "text": "{{ n.x | string | length }}",
    "in": "{{ 1 in [n.x == N.x] }}",
    "sort": "{{ [n.x, N.x] | sort }}",
    "unique": "{{ [T.x, U.x] | unique | list }}",
    "hash": "{{ {T.x: 1} }}",
    "join": "{{ (n.x | join(',')) | length }}",
}
OTHERS_FOR_C = {
    "join with a large separator": "{% set s = 'a' * 16000000 %}{{ (range(1000) | list) | join(s) }}",
    "digits": "{{ ('f' * 4000000) | int(0, 16) }}",
    "many lists": growing("[]", "[n.x, 'a' * 9999999]"),
    "slices": "{% set s = 'a' * 9999999 %}{{ ([s[1:], s[2:], s[3:]] * 300) | string }}",
}


def for_c(name):
    """Two lists and two tuples of the same content, none of which is another."""
    both = SHARED + SHARED.replace("n = ", "N = ").replace("n.x", "N.x")
    tuples = growing("(1,)", "(n.x, n.x)")
    both += tuples.replace("n = ", "T = ").replace("n.x", "T.x") + tuples.replace("n = ", "U = ").replace("n.x", "U.x")
    return both + HOSTILE_FOR_C[name]


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_hostile_templates(source, monkeypatch):
    monkeypatch.setattr("rlx.models.chat_template.MAX_SECONDS", 0.5)
    with pytest.raises(RlxError):
        render(source)


FOR_C = {name: for_c(name) for name in HOSTILE_FOR_C} | OTHERS_FOR_C


@pytest.mark.parametrize("source", FOR_C.values(), ids=FOR_C)
def test_hostile_templates_that_only_the_system_can_bound(source, monkeypatch):
    """These run for minutes or ask for gigabytes; whether the bound is 2 s or less makes no difference."""
    monkeypatch.setattr("rlx.models.chat_template.MAX_SECONDS", 0.3)
    with pytest.raises(RlxError, match=r"it runs longer than|it (needs|makes) more than|RecursionError|Exceeds"):
        render(source)


def test_a_literal_of_5000_digits_is_an_error_of_the_file():
    with pytest.raises(FormatError, match="chat template: "):
        ChatTemplate("{{ " + "9" * 5000 + " }}")


def test_a_good_template_renders_after_hostile_ones():
    """Also one that came before, and while its process holds the memory of others."""
    good = ChatTemplate(CHATML)
    wanted = good.render(USER)
    for source in (for_c("printing"), OTHERS_FOR_C["many lists"]):
        with pytest.raises(RlxError):
            render(source)
        assert good.render(USER) == wanted


MEASURED = """
import resource, sys
from rlx.errors import RlxError
from rlx.models import chat_template_process
from rlx.models.chat_template import ChatTemplate
for source in sys.argv[1:]:
    try:
        ChatTemplate(source).render([{"role": "user", "content": "hi"}])
    except RlxError as error:
        print(error)
chat_template_process._stop()
# Of this process by its own count: what getrusage says of it may be that of the one which started it.
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux bounds memory, and counts it there")
def test_memory_is_bounded_in_both_processes():
    sources = [*OTHERS_FOR_C.values(), HOSTILE["doubling lists"]]
    done = subprocess.run([sys.executable, "-c", MEASURED, *sources], check=True, capture_output=True, text=True)
    *_, own, other = map(int, done.stdout.splitlines()[-2:])
    assert own < 256 << 10 and other < 256 << 10, done.stdout


def test_threads_share_the_process():
    template = ChatTemplate("{% for i in range(999) %}{{ messages[0].content }}{% endfor %}")
    found = {}

    def one(word):
        found[word] = [template.render([{"role": "user", "content": word}]) for _ in range(5)]

    threads = [threading.Thread(target=one, args=(word,)) for word in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {word: [word * 999] * 5 for word in "abcd"}


def test_a_forked_child_has_a_process_of_its_own():
    template = ChatTemplate("{{ messages[0].content }}")
    child = os.fork()
    if not child:
        os._exit(template.render([{"role": "user", "content": "child"}]) != "child")
    assert template.render(USER) == "hi"
    assert os.waitpid(child, 0)[1] == 0


def test_a_process_that_was_killed_is_started_again():
    template = ChatTemplate("{{ messages[0].content }}")
    template.render(USER)
    os.kill(chat_template_process._worker._process.pid, signal.SIGKILL)
    assert template.render(USER) == "hi"


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", [lambda: 1]], ids=["object", "set", "bytes", "function"])
def test_arguments_are_plain_data(value):
    with pytest.raises(RlxError, match="chat: tools must be text, numbers, lists and mappings, got"):
        render("x", tools=value)


def test_arguments_that_contain_themselves():
    value = []
    value.append(value)
    with pytest.raises(RlxError, match="nests deeper"):
        render("x", tools=value)
