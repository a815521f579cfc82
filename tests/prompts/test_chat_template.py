"""Chat templates are rendered at a fixed time, with the text that transformers renders at that
time.
"""

import copy
import os
import resource
from datetime import datetime

import pytest

from anchorlens.errors import InputError
from anchorlens.prompts import chat_process, chat_template
from anchorlens.prompts.chat_template import Clock, render_chat
from tests.prompts.clocks import set_time
from tests.tokenizers_small import CHAT, small_tokenizer

TURNS = [("user", "Who?"), ("assistant", "Me."), ("user", "Right?")]
# As Llama 3.2 does it.
LLAMA = (
    "{{- bos_token }}\n{%- if not date_string is defined %}\n    {%- if strftime_now is defined"
    ' %}\n        {%- set date_string = strftime_now("%d %b %Y") %}\n    {%- else %}\n        {%-'
    ' set date_string = "26 Jul 2024" %}\n    {%- endif %}\n{%- endif %}\n{{- "Today Date: " +'
    ' date_string + "\\n\\n" }}\n' + CHAT
)
TEMPLATES = {
    "llama": LLAMA,
    "twice": (
        "{{ strftime_now('%d') }}.{{ strftime_now('%d') }} {{ strftime_now(format='%H:%M:%S') }}\n"
        + CHAT
    ),
    "arithmetic": "{{ strftime_now('%Y') | int + 1 }}{{ strftime_now('%d/%m') | upper }}",
    "in a macro": (
        "{% macro today(style) %}<{{ strftime_now(style) }}>{% endmacro %}{{ today('%j') }}" + CHAT
    ),
    "in a loop": (
        "{% for m in messages %}{% if m.role == 'user' %}{{ strftime_now('%A') }}{% endif %}{{"
        " m.content }}{% endfor %}"
    ),
    "chosen by the message": (
        "{% for m in messages %}{{ strftime_now('%' ~ m.content[0] | upper) }}{% endfor %}"
    ),
    "spaces first": "   {% set day = strftime_now('%d') %}\n  x {{ day }}  \n\n",
    "line first": "\n\n  {%- set day = strftime_now('%d') %}\n{{ day }}\n",
    "trimmed first": "{%- set day = strftime_now('%d') -%}\n\n {{ day }} \n",
    "quotes": "{{ strftime_now('\"%d\\' %% é\"') }}{{ strftime_now('') }}|",
}


def tokenizer_with(template):
    tokenizer = copy.deepcopy(small_tokenizer("byte", bos=True, chat=True))
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("generation", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_that_of_transformers_at_this_time(name, generation, monkeypatch):
    tokenizer = tokenizer_with(TEMPLATES[name])
    messages = [{"role": role, "content": text} for role, text in TURNS]
    texts = {}
    for time in ("2026-11-27T01:36:29", "2031-02-03T14:05:06"):
        set_time(monkeypatch, time)
        right = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=generation
        )
        set_time(monkeypatch, "1999-01-01T00:00:00")
        clock = Clock(datetime.fromisoformat(time))
        texts[time] = render_chat(tokenizer, TURNS, clock, add_generation_prompt=generation)
        assert texts[time] == right
        assert clock.is_read
        assert render_chat(tokenizer, TURNS, clock, add_generation_prompt=generation) == right
    assert len(set(texts.values())) == 2


@pytest.mark.parametrize(
    "template",
    [
        CHAT,
        LLAMA.replace("if strftime_now is defined", "if false"),
        CHAT + "{% if tools %}{{ strftime_now('%d') }}{% endif %}",
    ],
)
def test_a_template_that_does_not_read_the_clock(template):
    tokenizer, clock = tokenizer_with(template), Clock()
    messages = [{"role": role, "content": text} for role, text in TURNS]
    assert render_chat(tokenizer, TURNS, clock) == tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert not clock.is_read


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "(roles must alternate)"),
        ("{{ raise_exception('\x1b[31m\n\u202e') }}", "[31m"),
        ("{{ strftime_now(5) }}", "the format 5"),
        ("{{ strftime_now('%d') ", "end of"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{{ '\\ud800' }}", "UnicodeEncodeError"),
        ({"tool_use": "x"}, "multiple chat templates"),
    ],
)
def test_errors_of_a_template_are_one_error(template, reason):
    """Its own error; a format that is no text, which transformers refuses too; bad syntax."""
    assert_refused(template, reason)


def assert_refused(template, reason=""):
    """Assert that a template ends with one error with the template's tokenizer and the cure."""
    tokenizer = tokenizer_with(template)
    tokenizer.name_or_path = "some/model"
    with pytest.raises(InputError) as caught:
        render_chat(tokenizer, TURNS, Clock())
    text = str(caught.value)
    assert text.startswith("prompt='chat': the chat template of some/model cannot be used (")
    assert reason in text and text.isprintable() and "Use prompt='qa'" in text, text
    assert len(text) < 600


ENDLESS = {
    "range": "{% for i in range(10**9) %}{% endfor %}",
    "loops": ("{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}"),
    "macros": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "number": "{{ 10 ** (10 ** 9) }}",
    "clock": "{% for i in range(10**5) %}{{ strftime_now('%d' ~ i) }}{% endfor %}",
    "question": "{% if 'Who' in messages[0].content %}{{ lipsum(10**9) }}{% endif %}" + CHAT,
}
LARGE = {
    "times": "{{ 'a' * 10**9 }}",
    "unused": "{% set x = 'a' * 10**9 %}" + CHAT,
    "doubled": (
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}"
        "{% endfor %}{{ n.x }}"
    ),
    "format": "{{ '%1000000000d' % 1 }}",
    "filter": "{{ 'a' | center(10**9) }}",
    "list": "{{ ([0] * 10**9) | length }}",
    "text": "{{ 'a' * 10**7 }}",
    "error": "{{ raise_exception('a' * 10**8) }}",
    "macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "brackets": "{{ " + "(" * 100_000 + " }}",
    "blocks": "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
}


@pytest.fixture(scope="module")
def quick():
    """Process that ends after half a second of computing."""
    process = chat_process.ChatProcess(seconds=0.5)
    yield process
    process.stop()


FAST = {"loops", "question", "times", "unused", "macro"}
SLOW = [name for name in (*ENDLESS, *LARGE) if name not in FAST]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "name", [*sorted(FAST), *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_a_template_that_does_not_end_or_fills_the_memory_is_one_error(name, quick, monkeypatch):
    """The next template is rendered as before, and this process does not grow."""
    monkeypatch.setattr(chat_template, "CHAT_PROCESS", quick)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert_refused((ENDLESS | LARGE)[name])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB
    assert render_chat(tokenizer_with("fine"), TURNS, Clock()) == "fine"


@pytest.mark.slow
def test_an_interrupted_rendering_leaves_no_reply_behind(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(chat_process, "_exchange", interrupt)
        with pytest.raises(KeyboardInterrupt):
            render_chat(tokenizer_with("first"), TURNS, Clock())
    assert render_chat(tokenizer_with("second"), TURNS, Clock()) == "second"
    ended = chat_process.CHAT_PROCESS._process
    assert ended is not None
    ended.kill()
    ended.wait()
    assert render_chat(tokenizer_with("third"), TURNS, Clock()) == "third"


@pytest.mark.slow
def test_a_fork_does_not_read_the_replies_of_its_parent():
    """A fork starts a process of its own."""
    assert render_chat(tokenizer_with("parent"), TURNS, Clock()) == "parent"
    mine = chat_process.CHAT_PROCESS._process
    child = os.fork()
    if not child:
        try:
            same = render_chat(tokenizer_with("child"), TURNS, Clock()) != "child"
            same = same or chat_process.CHAT_PROCESS._process is mine
            chat_process.CHAT_PROCESS.stop()
        except BaseException:  # noqa: BLE001 - a fork of the tests ends here
            same = True
        os._exit(int(same))
    assert os.waitpid(child, 0)[1] == 0
    assert render_chat(tokenizer_with("again"), TURNS, Clock()) == "again"
    assert chat_process.CHAT_PROCESS._process is mine
