"""Chat templates are rendered at a fixed time, with the text that transformers renders at that
time.
"""

import copy
from datetime import datetime

import pytest
from jinja2 import TemplateError

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
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ strftime_now(5) }}",
        "{{ strftime_now('%d') ",
    ],
)
def test_errors_of_a_template_are_raised(template):
    """Its own error; a format that is no text, which transformers refuses too; bad syntax."""
    with pytest.raises((TemplateError, TypeError)):
        render_chat(tokenizer_with(template + "{# strftime_now #}"), TURNS, Clock())
